"""The strongest keys of each query, ordered and distinguishable."""

import numpy as np

from attnscope.document.csv import csv_table
from attnscope.model.maps.record import strongest, strongest_columns
from attnscope.model.maps.result import AttentionMap, AttentionMaps
from attnscope.model.run.tokens import Token

WEIGHTS = np.array([[0.25, 0.5, 0.25], [1, 0, 0]], "float32")


def maps():
    keys = [Token(" the"), Token(" cat"), Token(" the")]
    return AttentionMaps("tiny", "cross", 1, 1, 1, keys[:2], keys, [AttentionMap(0, 0, 0, WEIGHTS)])


def test_the_largest_come_first_and_of_equals_the_left_one():
    assert strongest(maps(), maps().maps[0], 2) == [
        (0, [(1, 0.5), (0, 0.25)]),
        (1, [(0, 1.0), (1, 0.0)]),
    ]


def test_of_many_equals_the_left_ones_come_first():
    map_ = AttentionMap(0, 0, 0, np.tile(np.array([0.25, 0.75], "float32"), (1, 200)))
    tokens = [Token("x")] * 400
    (_, keys), *_ = strongest(AttentionMaps("m", "cross", 1, 1, 1, tokens[:1], tokens, [map_]), map_, 3)
    assert [key for key, _ in keys] == [1, 3, 5]


def test_there_are_no_more_than_there_are():
    assert [len(keys) for _, keys in strongest(maps(), maps().maps[0], 9)] == [3, 3]


def test_as_numpy_sorts_them():
    weights = np.random.default_rng(0).random((7, 11), "float32")
    tokens = [Token(str(i)) for i in range(11)]
    map_ = AttentionMap(0, 0, 0, weights)
    got = strongest(AttentionMaps("m", "cross", 1, 1, 1, tokens[:7], tokens, [map_]), map_, 4)
    assert [[weight for _, weight in keys] for _, keys in got] == np.sort(weights)[:, :-5:-1].tolist()


def test_people_read_positions_tokens_and_weights_but_nothing_of_keys_without():
    columns = [column for column in strongest_columns(maps(), maps().maps[0], 3) if column.cells]
    assert [column.title for column in columns] == ["query", "#1", "#2", "#3"]
    assert columns[1].texts() == ["1 cat 0.50", "0 the 1.00"]
    assert columns[2].texts() == ["0 the 0.25", ""]
    assert columns[3].texts() == ["2 the 0.25", ""]


def test_programs_get_a_column_for_each():
    assert csv_table(strongest_columns(maps(), maps().maps[0], 1)).splitlines() == [
        "query,query_token,key_1,key_token_1,weight_1",
        "0, the,1, cat,0.5",
        "1, cat,0, the,1.0",
    ]
