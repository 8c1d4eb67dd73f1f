"""Folders of this user alone, and files in them that no other user has laid there."""
from __future__ import annotations

import os
import stat
from pathlib import Path

import pytest

from xlogmem._base.private import Folder, private_folder


@pytest.fixture
def folder(tmp_path):
    with private_folder(tmp_path / "own", make=True) as made:
        yield made


def test_a_folder_is_made_for_this_user_alone(folder, tmp_path):
    found = os.stat(tmp_path / "own")
    assert (stat.S_IMODE(found.st_mode), found.st_uid) == (0o700, os.geteuid())
    with private_folder(tmp_path / "own") as again:
        assert os.path.sameopenfile(again.descriptor, folder.descriptor)


def test_what_is_not_there_is_made_on_request_alone(tmp_path):
    with pytest.raises(FileNotFoundError):
        private_folder(tmp_path / "own")


@pytest.mark.parametrize("make", [Path.touch, lambda path: path.symlink_to(path.parent)])
def test_a_file_or_a_link_is_refused(tmp_path, make):
    make(tmp_path / "own")
    with pytest.raises(NotADirectoryError, match="is not a folder"):
        private_folder(tmp_path / "own", make=True)


def test_what_others_may_enter_is_refused(tmp_path):
    (tmp_path / "own").mkdir()
    (tmp_path / "own").chmod(0o710)
    with pytest.raises(PermissionError, match=r"other users may enter .*: chmod 700"):
        private_folder(tmp_path / "own", make=True)


def test_a_folder_of_another_user_is_refused(tmp_path, monkeypatch):
    (tmp_path / "own").mkdir(0o700)
    own = os.geteuid()
    monkeypatch.setattr(os, "geteuid", lambda: own + 1)
    with pytest.raises(PermissionError, match=f"belongs to user {own}, not to user {own + 1}: go away"):
        private_folder(tmp_path / "own", remedy="go away")


def test_a_folder_that_is_exchanged_while_it_is_opened_is_refused(tmp_path, monkeypatch):
    """... for what is looked at is what was opened."""
    (tmp_path / "own").mkdir(0o700)
    look = os.lstat

    def exchanging(path):
        found = look(path)
        os.chmod(path, 0o777)
        return found

    monkeypatch.setattr(os, "lstat", exchanging)
    with pytest.raises(PermissionError, match="other users may enter"):
        private_folder(tmp_path / "own")


def test_a_new_file_is_this_users_and_new(folder):
    os.close(folder.new_file("file"))
    assert stat.S_IMODE(os.stat(folder.path / "file").st_mode) == 0o600
    with pytest.raises(FileExistsError):
        folder.new_file("file")


@pytest.mark.parametrize("target", ["victim", "nothing"])
def test_no_link_is_followed(folder, tmp_path, target):
    (tmp_path / "victim").write_text("precious")
    (folder.path / "file").symlink_to(tmp_path / target)
    with pytest.raises(FileExistsError):
        folder.new_file("file")
    (folder.path / f"file.{os.getpid()}.part").symlink_to(tmp_path / target)
    with folder.replacing("file") as file:
        file.write(b"new")
    assert ((tmp_path / "victim").read_text(), (tmp_path / "nothing").exists()) == ("precious", False)
    assert not (folder.path / "file").is_symlink()
    assert os.listdir(folder.path) == ["file"]


def test_a_file_is_replaced_at_once_or_not_at_all(folder):
    with folder.replacing("file") as file:
        file.write(b"first")
    with pytest.raises(ZeroDivisionError), folder.replacing("file") as file:
        file.write(b"second")
        file.flush()
        assert (folder.path / "file").read_bytes() == b"first"
        raise ZeroDivisionError
    assert ((folder.path / "file").read_bytes(), os.listdir(folder.path)) == (b"first", ["file"])


def test_nothing_is_written_into_a_folder_that_took_the_place(folder, tmp_path):
    folder.path.rmdir()
    folder.path.mkdir()
    with pytest.raises(FileNotFoundError):
        folder.new_file("file")
    with pytest.raises(FileNotFoundError), folder.replacing("file"):
        pass
    assert os.listdir(folder.path) == []


def test_a_descriptor_that_is_another_folders_now_is_not_used(folder, tmp_path):
    """A program may close descriptors that it does not know, as daemons do."""
    other = os.open(tmp_path, os.O_RDONLY)
    os.dup2(other, folder.descriptor)
    with pytest.raises(FileNotFoundError, match="was closed"):
        folder.new_file("file")
    number = folder.descriptor
    folder.close()
    os.fstat(number)                                    # it is still the other's
    os.close(number)
    os.close(other)
    assert not (tmp_path / "file").exists()


def test_any_folder_can_be_opened_for_files_of_a_user(tmp_path):
    with Folder(tmp_path) as folder, folder.replacing("file", mode=0o644) as file:
        file.write(b"content")
    assert (tmp_path / "file").read_bytes() == b"content"
    folder.close()
    with pytest.raises(FileNotFoundError), Folder(tmp_path / "nowhere"):
        pass
