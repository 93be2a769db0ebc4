"""script/documented: what of headers and of a package it takes for documented."""

import importlib.machinery
import importlib.util
import shutil
from pathlib import Path
from typing import NamedTuple

import pytest

SCRIPT = Path(__file__).resolve().parents[2] / "script/documented"


@pytest.fixture(scope="module")
def documented():
    loader = importlib.machinery.SourceFileLoader("documented", str(SCRIPT))
    module = importlib.util.module_from_spec(importlib.util.spec_from_loader("documented", loader))
    loader.exec_module(module)
    return module


HEADER = """
namespace tower {

/// A thing, of `size` parts.
struct Thing {
  explicit Thing(int size);
  /// Made of another; `other` says which.
  explicit Thing(const char* other);
  Thing(const Thing&) = delete;
  ~Thing();
  int weight;
  int height;  ///< in metres
  /// Cuts it.
  void cut(int where_to) const;

 private:
  int hidden;
};

/// How.
enum class Way {
  there,  ///< to the other side
  back,
};

/// The sum of `a` and `b`.
int sum(int a, int b);
/// The same of a `c`, too.
int sum(int a, int b, int c);
/// As tower::sum does.
int total(int a, int b);
/// The same, or another.
int product(int a, int z);
void nothing();

namespace detail {
void mine();
}

}  // namespace tower

#define TOWER_LIMIT 3
"""


@pytest.mark.skipif(not shutil.which("doxygen"), reason="there is no doxygen")
def test_a_name_of_a_header_without_a_comment_or_with_one_that_leaves_out_a_parameter_is_named(documented, tmp_path):
    (tmp_path / "thing.h").write_text(HEADER)
    names = documented.of_headers(tmp_path)
    missing = {name.name.removeprefix("tower::"): name.missing for name in names if name.missing}
    assert missing == {
        "Thing::Thing": "no comment",
        "Thing::weight": "no comment",
        "Thing::cut": "nothing of where_to",
        "Way::back": "no comment",
        "product": "nothing of a, z",
        "nothing": "no comment",
        "TOWER_LIMIT": "no comment",
    }
    assert {name.name for name in names if not name.missing} == {
        "tower::Thing",
        "tower::Thing::Thing",
        "tower::Thing::height",
        "tower::Way",
        "tower::Way::there",
        "tower::sum",
        "tower::total",
    }


class Pair(NamedTuple):
    """A pair: `first` comes first."""

    first: int
    second: int


def test_a_name_of_the_package_counts_by_its_own_docstring(documented):
    package = documented.Package()

    class Shape:
        """A shape."""

        def area(self, unit):
            """Its area."""

        def grow(self):
            pass

        @property
        def sides(self):
            pass

        def _private(self):
            pass

    found = [*package.of_class("Pair", Pair), *package.of_class("Shape", Shape)]
    assert {name.name: name.missing for name in found} == {
        "Pair": "nothing of second",
        "Shape": None,
        "Shape.area": "nothing of unit",
        "Shape.grow": "no comment",
        "Shape.sides": "no comment",
    }
