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
        for path in [source / "index.yml", *sorted(source.glob("*/*.safetensors"))]:
            place = target / path.relative_to(source)
            place.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(path, place)


setup(cmdclass={"build_py": BuildWithZoo})
