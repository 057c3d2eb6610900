"""Loads a folder with plain transformers, of any version, and prints its greedy answer with the ids of its tokens."""

import json
import sys

import torch
import transformers

folder, question = sys.argv[1:]
tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
model = transformers.AutoModelForCausalLM.from_pretrained(folder, torch_dtype=torch.float32)
chat = [{"role": "user", "content": question}]
text = tokenizer.apply_chat_template(chat, tokenize=False, add_generation_prompt=True)
prompt = tokenizer(text, add_special_tokens=False, return_tensors="pt")["input_ids"]
with torch.inference_mode():
    ids = model.generate(prompt, do_sample=False, max_new_tokens=64)[0, prompt.shape[1] :].tolist()
print(json.dumps({"version": transformers.__version__, "prompt": prompt.tolist(), "text": tokenizer.decode(ids)}))
