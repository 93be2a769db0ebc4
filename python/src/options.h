// Options of solvers, from a dict that the veneer fills: words, numbers, and what is wrong with them.
#pragma once

#include <pybind11/stl.h>
#include <tower/errors.h>
#include <tower/least_squares.h>

#include <initializer_list>
#include <optional>
#include <string>
#include <utility>

#include "convert.h"

namespace tower::python {

template <class E>
E chosen(const std::string& name, const char* argument, std::initializer_list<std::pair<const char*, E>> values) {
  std::string all;
  for (const auto& [known, value] : values) {
    if (name == known) return value;
    all += (all.empty() ? "'" : ", '") + std::string(known) + "'";
  }
  throw ArgumentError(std::string(argument) + " is '" + name + "'; it must be one of " + all + ".");
}

template <class T>
inline constexpr const char* kKind = "a number";
template <>
inline constexpr const char* kKind<int64_t> = "a whole number";
template <>
inline constexpr const char* kKind<bool> = "True or False";
template <>
inline constexpr const char* kKind<std::string> = "a word";
template <class T>
inline constexpr const char* kKind<std::optional<T>> = kKind<T>;

/// The option `name`, one of a T.
template <class T>
T option(const py::dict& given, const char* name) {
  const py::object value = given[name];
  try {
    return value.cast<T>();
  } catch (const py::cast_error&) {
    throw ArgumentError(std::string(name) + " is " + py::repr(value).cast<std::string>() + "; it must be " + kKind<T> +
                        ".");
  }
}

inline Loss to_loss(const py::dict& given) {
  using Made = Loss (*)(double);
  return chosen<Made>(option<std::string>(given, "loss"), "loss",
                      {{"squares", [](double) { return Loss::squares(); }},
                       {"huber", &Loss::huber},
                       {"soft_l1", &Loss::soft_l1},
                       {"cauchy", &Loss::cauchy}})(option<double>(given, "scale"));
}

}  // namespace tower::python
