"""See a run: every token, the author, whether the token is trained, and why not.

`readers` read any input into the episodes of `model`; `audit` looks for lost tokens; `sources` lists and indexes
inputs; `server` shows episodes in a browser.
"""
