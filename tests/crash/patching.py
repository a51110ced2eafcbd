"""Puts other functions in the place of a class's or module's own, in this process."""


def put_in(owner: object, **functions: object) -> None:
    """Replace attributes of `owner`, which must have them already."""
    for name, function in functions.items():
        assert hasattr(owner, name), f"{owner} has no {name}"
        setattr(owner, name, function)
