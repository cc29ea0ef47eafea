from types import SimpleNamespace

from hypvision.data.usage import Usage, usages


def test_counts_and_reasons():
    usage = Usage("photos")
    usage.use("images", 3)
    for i in range(4):
        usage.leave_out("images", "suffix .xcf", f"{i}.xcf")
    usage.leave_out("boxes", "outside the image", "a.jpg, annotation 7")
    assert str(usage) == (
        "'photos': used 3 of 7 images, 0 of 1 boxes. Left out: 4 images (suffix .xcf: 0.xcf, "
        "1.xcf, 2.xcf, ...); 1 boxes (outside the image: a.jpg, annotation 7)."
    )
    assert usage.left_out() == 5 and usage.left_out("boxes") == 1
    assert usage.rows()[0] == ("images", 3, "used", "")
    usage = Usage("photos")
    usage.leave_out("files", "not drawn", "", 9)
    assert str(usage) == "'photos': used 0 of 9 files. Left out: 9 files (not drawn)."
    usage = Usage("photos")
    usage.use("files", 9)
    usage.leave_out("folders", "none of the classes", "cats")
    expected = "'photos': used 9 of 9 files. Left out: 1 folders (none of the classes: cats)."
    assert str(usage) == expected


def test_counts_inside_wrappers():
    inner = SimpleNamespace(usage=Usage("a"))
    wrapped = SimpleNamespace(
        dataset=SimpleNamespace(datasets=[inner, SimpleNamespace(usage=Usage("b"))])
    )
    assert [usage.place for usage in usages(wrapped)] == ["a", "b"]
    assert list(usages(SimpleNamespace())) == []
