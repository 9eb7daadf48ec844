"""What pyproject.toml cannot say: the example that a command runs is installed as minigrad_examples."""
from setuptools import find_namespace_packages, setup

setup(packages=[*find_namespace_packages(include=["minigrad*"]), "minigrad_examples", "minigrad_examples.efficientnet",
                "minigrad_examples.gpt", "minigrad_examples.zoo"],
      package_dir={"minigrad_examples": "examples"})
