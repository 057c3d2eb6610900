"""Show a run: every token, its author, whether the token is trained, and why not.

`readers` turns any input into the records of `model`. `audit` looks for lost tokens. `sources` lists and indexes
inputs. `server` shows episodes in a browser.
"""
