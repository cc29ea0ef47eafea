"""Everything is in pyproject.toml; this puts the model zoo, which lies beside the package, into wheels."""

import shutil
from pathlib import Path

from setuptools import setup
from setuptools.command.build_py import build_py


class BuildWithZoo(build_py):
    """Copies ``model_zoo`` to ``hypvision/_model_zoo``; an editable install finds it where it lies."""

    def run(self):
        super().run()
        source, target = Path("model_zoo"), Path(self.build_lib, "hypvision", "_model_zoo")
        if self.editable_mode or not source.is_dir():
            return
        shutil.rmtree(target, ignore_errors=True)
        (target / "weights").mkdir(parents=True)
        for path in [source / "index.yml", *sorted((source / "weights").glob("*.safetensors"))]:
            shutil.copyfile(path, target / path.relative_to(source))


setup(cmdclass={"build_py": BuildWithZoo})
