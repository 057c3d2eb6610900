"""See a run: every token, who wrote it, whether it is trained, and why not.

`readers` read any input into the episodes of `model`; `audit` looks for lost tokens in them; `sources` lists and
indexes inputs; `server` shows them in a browser.
"""
