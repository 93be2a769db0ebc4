// Numbers by which things of one kind are known, each kind's a type of its own, and lists that are indexed by such a
// number and by no other.
//
//   enum class ValueId : int64_t {};
//   ById<ValueId, bool> needed(graph.values.size());
//   for (const ValueId id : needed.ids()) needed[id] = reads(id);
//
// So neither a place in another list nor the number of another kind of thing is taken for an index of `needed`.
#pragma once

#include <cstddef>
#include <type_traits>
#include <utility>
#include <vector>

namespace tower::compiler {

/// The integer that an id is, for what is written and printed, or any enumerator.
template <class E>
constexpr std::underlying_type_t<E> plain(E id) {
  return static_cast<std::underlying_type_t<E>>(id);
}

/// Ids, one after the other: from the first to before the last.
template <class I, int kStep = 1>
class Ids {
 public:
  class iterator {
   public:
    constexpr explicit iterator(I id) : id_(id) {}
    constexpr I operator*() const { return id_; }
    constexpr iterator& operator++() {
      id_ = static_cast<I>(plain(id_) + kStep);
      return *this;
    }
    constexpr bool operator==(const iterator&) const = default;

   private:
    I id_;
  };

  constexpr Ids(I first, I last) : first_(first), last_(last) {}
  constexpr iterator begin() const { return iterator(first_); }
  constexpr iterator end() const { return iterator(last_); }

 private:
  I first_, last_;
};

/// A list whose elements are known by their places in it.
template <class I, class T, class List = std::vector<T>>
class ById : private List {
 public:
  using List::List;

  decltype(auto) operator[](I id) { return List::operator[](static_cast<size_t>(id)); }
  decltype(auto) operator[](I id) const { return List::operator[](static_cast<size_t>(id)); }

  /// Of the element that is added next.
  I next_id() const { return static_cast<I>(List::size()); }
  Ids<I> ids(I first = I{}) const { return {first, next_id()}; }
  Ids<I, -1> ids_backwards() const { return {static_cast<I>(plain(next_id()) - 1), I{-1}}; }

  I add(T element) {
    const I id = next_id();
    List::push_back(std::move(element));
    return id;
  }

  using List::assign;
  using List::back;
  using List::begin;
  using List::end;
  using List::resize;
  using List::size;
};

}  // namespace tower::compiler
