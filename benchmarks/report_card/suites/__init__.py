"""The environments of each suite. A module has `PACKAGES` and `environments()`, and runs where its suite is
installed. families.yaml has the suites of gymnasium's registry."""
