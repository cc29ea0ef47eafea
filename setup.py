"""Everything is in pyproject.toml; this puts what lies beside the package into wheels: model zoo
and configs."""

import shutil
from pathlib import Path

from setuptools import setup
from setuptools.command.build_py import build_py


class BuildWithData(build_py):
    """Copies ``model_zoo`` to ``hypvision/_model_zoo`` and ``configs`` to ``hypvision/_configs``;
    an editable install finds them where they lie."""

    def run(self):
        super().run()
        if self.editable_mode:
            return
        zoo, configs = Path("model_zoo"), Path("configs")
        self._copy(zoo, "_model_zoo", [zoo / "index.yml", *sorted(zoo.glob("*/*.safetensors"))])
        self._copy(configs, "_configs", sorted([*configs.rglob("*.py"), *configs.rglob("*.csv")]))

    def _copy(self, source, name, files):
        target = Path(self.build_lib, "hypvision", name)
        shutil.rmtree(target, ignore_errors=True)
        for path in files:
            place = target / path.relative_to(source)
            place.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(path, place)


setup(cmdclass={"build_py": BuildWithData})
