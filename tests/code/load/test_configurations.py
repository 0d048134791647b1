"""Each run gets a copy of a configuration with its own sizes, and the caller's object stays as it is."""

from argparse import Namespace
from collections import namedtuple
from collections.abc import MutableMapping
from copy import deepcopy
from dataclasses import dataclass, field
from types import SimpleNamespace

import pytest
import torch

from attnscope.base.errors import SourceError
from attnscope.code.load.configurations import copy_of, settings_of
from attnscope.code.load.construct import make_value
from attnscope.code.load.specs import Configuration, Plain, numbers_in, value_of


@dataclass
class Config:
    d_feat: int
    n_head: int = 4
    n_kv_head: int | None = None
    d_head: int = field(init=False)
    layers: list = field(default_factory=list)

    def __post_init__(self):
        self.n_kv_head = self.n_kv_head or self.n_head
        self.d_head = self.d_feat // self.n_head
        self.layers.append(self.d_head)


@dataclass(frozen=True, slots=True)
class Frozen:
    d_feat: int = 48
    n_head: int = 4


Named = namedtuple("Named", ["d_feat", "n_head"])


class Plainly:
    def __init__(self, d_feat, n_head=4, **others):
        self.d_feat, self.n_head = d_feat, n_head
        self.d_head = d_feat // n_head


class Filled:
    """What parsers of files fill: its constructor knows nothing of it."""

    _private = 3

    def __init__(self):
        self.d_feat, self.n_head, self._seen = 48, 4, 9


class Attributes(dict):
    """A dictionary whose items are attributes, as many projects have one."""

    def __init__(self, **items):
        super().__init__(items)
        self.__dict__ = self


class Interpolated(MutableMapping):
    """A mapping whose items may refer to others, as OmegaConf's do."""

    def __init__(self, items):
        self.stored = dict(items)

    def __getitem__(self, key):
        item = self.stored[key]
        return self.stored[item[1:]] if isinstance(item, str) and item.startswith("$") else item

    def __setitem__(self, key, item):
        self.stored[key] = item

    def __delitem__(self, key):
        del self.stored[key]

    def __iter__(self):
        return iter(self.stored)

    def __len__(self):
        return len(self.stored)


def read(config, name):
    return config[name] if isinstance(config, MutableMapping | dict) else getattr(config, name)


@pytest.mark.parametrize(
    "config",
    [
        Frozen(),
        Named(48, 4),
        Plainly(48, 4),
        Filled(),
        SimpleNamespace(d_feat=48, n_head=4, act="gelu", bias=True),
        Namespace(d_feat=48, n_head=4),
        Attributes(d_feat=48, n_head=4),
        Interpolated({"d_feat": 48, "n_head": 4, "n_kv_head": "$n_head"}),
        {"d_feat": 48, "n_head": 4},
    ],
    ids=lambda config: type(config).__name__,
)
def test_each_kind_of_configuration_has_copies_with_other_sizes(config):
    before = deepcopy(config) if isinstance(config, dict) else repr(vars(config)) if hasattr(config, "__dict__") else config  # fmt: skip
    value = value_of(config)
    assert dict(numbers_in("config", value)) == {"d_feat": 48, "n_head": 4}
    same, other = (
        make_value(value, "config", sizes, wrap_errors=True) for sizes in ({}, {"d_feat": 66})
    )
    assert type(same) is type(other) is type(config)
    assert same is not config or isinstance(config, tuple)  # a tuple of numbers is its own copy
    assert [read(each, "d_feat") for each in (config, same, other)] == [48, 48, 66]
    assert [read(each, "n_head") for each in (config, same, other)] == [4, 4, 4]
    now = config if isinstance(config, dict) else repr(vars(config)) if hasattr(config, "__dict__") else config  # fmt: skip
    assert now == before


def test_what_is_computed_from_sizes_follows_them():
    config = Config(48)
    value = value_of(config)
    assert dict(numbers_in("", value)) == {"d_feat": 48, "n_head": 4}
    other = make_value(value, "", {"d_feat": 60, "n_head": 5}, wrap_errors=True)
    assert (other.d_feat, other.n_head, other.n_kv_head, other.d_head) == (60, 5, 5, 12)
    assert config.layers == [12]

    shared = make_value(value_of(Config(48, 4, 2)), "", {"n_kv_head": 3, "n_head": 6}, wrap_errors=True)
    assert (shared.n_head, shared.n_kv_head, shared.d_head) == (6, 3, 8)

    plain = make_value(value_of(Plainly(48)), "", {"d_feat": 60}, wrap_errors=True)
    assert (plain.d_feat, plain.n_head, plain.d_head) == (60, 4, 15)

    linked = value_of(Interpolated({"d_feat": 48, "n_head": 4, "n_kv_head": "$n_head"}))
    assert make_value(linked, "", {"n_head": 6}, wrap_errors=True)["n_kv_head"] == 6


def test_a_configuration_with_attributes_of_its_own_keeps_them():
    config = Plainly(48)
    config.act, config.n_layer = "gelu", 3
    other = copy_of(config, {"d_feat": 60})
    assert (other.d_feat, other.n_layer, other.act) == (60, 3, "gelu")


def test_configurations_may_be_nested():
    config = SimpleNamespace(model=Frozen(), data={"n_batch": 8, "more": [Named(5, 7)]}, name="x")
    value = value_of(config)
    assert dict(numbers_in("", value)).keys() == {"d_feat", "n_head", "n_batch"}
    other = make_value(value, "", {"n_head": 6, "n_batch": 9}, wrap_errors=True)
    assert (other.model.n_head, other.data["n_batch"], other.name) == (6, 9, "x")
    assert (config.model.n_head, config.data["n_batch"]) == (4, 8)


def test_an_object_that_contains_itself_is_read():
    config = SimpleNamespace(d_feat=48)
    config.root = config
    assert ("d_feat", 48) in numbers_in("", value_of(config))


@pytest.mark.parametrize(
    "value",
    [
        5,
        "text",
        None,
        2.5,
        True,
        [3, 4],
        torch.ones(3),
        torch.nn.Linear(3, 4),
        Config,
        len,
        torch.float32,
    ],
    ids=str,
)
def test_other_objects_are_no_configurations(value):
    assert settings_of(value) == {}
    assert type(value_of(value)) is Plain


def test_what_the_class_refuses_is_refused_at_other_sizes():
    class Once:
        def __init__(self, d_feat):
            if d_feat != 48:
                raise ValueError("48, and nothing else")
            self.d_feat = d_feat

    value = value_of(Once(48))
    assert isinstance(value, Configuration)
    with pytest.raises(ValueError, match="nothing else"):
        make_value(value, "", {"d_feat": 60}, wrap_errors=False)


def test_what_cannot_be_copied_is_told():
    config = SimpleNamespace(d_feat=48, rows=(x for x in ()))
    with pytest.raises(SourceError, match="cannot copy SimpleNamespace, which must stay unchanged"):
        make_value(value_of(config), "", {}, wrap_errors=True)
