"""An Env in TRL's GRPOTrainer, from a model's folder to a folder: GRPO as `agentrl train` does it in the quickstart."""

from __future__ import annotations

from transformers import TrainerCallback
from trl import GRPOConfig, GRPOTrainer

from agentrl.hosts.trl import TRLRollouts
from agentrl.models import load_tokenizer
from tests.hosts.training.arguments import GROUP, LIMITS, PROMPTS, UPDATES, Run

LEARNING_RATE = 3e-4


class Counted(TRLRollouts):
    """Counts the sampled tokens."""

    sampled = 0

    async def play_all(self, *args):
        played = await super().play_all(*args)
        self.sampled += sum(trajectory.ledger.sampled for trajectory in played)
        return played


class Stop(TrainerCallback):
    """Ends the training after as many sampled tokens."""

    def __init__(self, rollouts, tokens) -> None:
        self.rollouts, self.tokens = rollouts, tokens

    def on_step_end(self, args, state, control, **_):
        control.should_training_stop = self.rollouts.sampled >= self.tokens and state.global_step % UPDATES == 0


def train(run: Run) -> tuple[int, int]:
    """Returns the number of updates and of sampled tokens."""
    rollouts = Counted(run.env, limits=LIMITS)
    trainer = GRPOTrainer(
        run.model,
        processing_class=load_tokenizer(run.model),  # AutoTokenizer takes the words of Qwen2 apart in another way
        reward_funcs=rollouts.reward,
        rollout_func=rollouts,
        train_dataset=rollouts.dataset(),
        callbacks=[Stop(rollouts, run.tokens)],
        args=GRPOConfig(
            output_dir=run.out,
            seed=run.seed,
            learning_rate=run.learning_rate,
            lr_scheduler_type="constant",
            per_device_train_batch_size=PROMPTS * GROUP // UPDATES,
            steps_per_generation=UPDATES,
            num_generations=GROUP,
            max_completion_length=512,
            max_steps=1000,
            use_cpu=True,
            bf16=False,
            report_to="none",
            save_strategy="no",
            logging_steps=UPDATES,
        ),
    )
    trainer.train()
    trainer.save_model()
    return trainer.state.global_step, rollouts.sampled


if __name__ == "__main__":
    Run.of_command(LEARNING_RATE).write(train)
