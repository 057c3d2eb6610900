"""Harbor tasks for tests, written by us."""

TEST = """#!/bin/bash
if [ "$(cat /app/answer.txt 2>/dev/null)" = "{answer}" ]; then echo 1; else echo 0; fi > /logs/verifier/reward.txt
exit 3
"""
SOLVE = "#!/bin/bash\necho {answer} > /app/answer.txt\n"


def harbor_task(folder, *, toml="", dockerfile="FROM base\nWORKDIR /app\n", steps=(), solve=SOLVE, test=TEST):
    """A task directory: its answer is to be written to answer.txt."""
    for number, place in enumerate([folder / "steps" / step for step in steps] or [folder]):
        answer = 42 + number
        (place / "tests").mkdir(parents=True)
        (place / "tests" / "test.sh").write_text(test.replace("{answer}", str(answer)))
        (place / "instruction.md").write_text(f"<!-- canary 1 -->\n\n# Answer\n{place.name}\n")
        if solve:
            (place / "solution").mkdir()
            (place / "solution" / "solve.sh").write_text(solve.replace("{answer}", str(answer)))
    (folder / "environment").mkdir()
    (folder / "environment" / "Dockerfile").write_text(dockerfile)
    (folder / "task.toml").write_text(toml)
    return folder
