"""A config as somebody else's parser reads it, as JSON on stdout."""
import json
import sys

path = sys.argv[1]
if path.endswith(".toml"):
    import tomllib

    with open(path, "rb") as file:
        value = tomllib.load(file)
else:
    import yaml

    with open(path, encoding="utf-8-sig") as file:
        value = yaml.safe_load(file)
json.dump(value, sys.stdout, default=str)
