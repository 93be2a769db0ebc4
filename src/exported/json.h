// JSON that is read with its place: each value knows the way to it from the document's root, so that an error says
// "graph_module.graph.nodes[3].target is no string". The parser is nlohmann's.
#pragma once

#include <cstdint>
#include <limits>
#include <nlohmann/json.hpp>
#include <string>

#include "exported/archive.h"

namespace tower::exported {

/// A value in a document. It refers to the document and to the value around it, and does not outlive them.
class Json {
 public:
  Json(const nlohmann::json& document, const char* name) : value_(document), name_(name) {}

  /// Throws FileError where the text is no JSON.
  static nlohmann::json parse(const std::string& text, const std::string& what) {
    nlohmann::json document = nlohmann::json::parse(text, nullptr, /*allow_exceptions=*/false);
    if (document.is_discarded()) throw FileError(what + " is no JSON");
    return document;
  }

  /// Where it stands.
  std::string place() const {
    const std::string before = around_ ? around_->place() : "";
    if (name_) return before + (before.empty() ? "" : ".") + name_;
    return before + "[" + std::to_string(index_) + "]";
  }
  [[noreturn]] void fail(const std::string& why) const { throw FileError(place() + " " + why); }

  bool is_null() const { return value_.is_null(); }
  bool has(const char* key) const {
    const auto found = object().find(key);
    return found != value_.end() && !found->is_null();
  }
  /// A field, which has to be there. (`key` is not copied.)
  Json operator[](const char* key) const {
    const auto found = object().find(key);
    if (found == value_.end()) fail(std::string("has no \"") + key + "\"");
    return Json(*found, this, key, 0);
  }
  /// Calls visit(key, value) for each field.
  template <class Visit>
  void each_field(Visit&& visit) const {
    for (auto field = object().begin(); field != value_.end(); ++field)
      visit(field.key(), Json(field.value(), this, field.key().c_str(), 0));
  }
  /// Calls visit(element) for each element of a list.
  template <class Visit>
  void each(Visit&& visit) const {
    if (!value_.is_array()) fail("is no list");
    size_t index = 0;
    for (const auto& element : value_) visit(Json(element, this, nullptr, index++));
  }
  size_t size() const {
    if (!value_.is_array()) fail("is no list");
    return value_.size();
  }

  bool is_text() const { return value_.is_string(); }
  std::string text() const {
    if (!value_.is_string()) fail("is no string");
    return value_.get_ref<const std::string&>();
  }
  bool boolean() const {
    if (!value_.is_boolean()) fail("is neither true nor false");
    return value_.get<bool>();
  }
  int64_t integer() const {
    if (!value_.is_number_integer()) fail("is no integer");
    if (value_.is_number_unsigned() && value_.get<uint64_t>() > uint64_t{std::numeric_limits<int64_t>::max()})
      fail("is an integer of more than 64 bits");
    return value_.get<int64_t>();
  }
  /// Numbers that JSON does not have are strings.
  double number() const {
    if (value_.is_number()) return value_.get<double>();
    const std::string name = value_.is_string() ? text() : "";
    if (name == "Infinity") return std::numeric_limits<double>::infinity();
    if (name == "-Infinity") return -std::numeric_limits<double>::infinity();
    if (name == "NaN") return std::numeric_limits<double>::quiet_NaN();
    fail("is no number");
  }

 private:
  Json(const nlohmann::json& value, const Json* around, const char* name, size_t index)
      : value_(value), around_(around), name_(name), index_(index) {}

  const nlohmann::json& object() const {
    if (!value_.is_object()) fail("is no object");
    return value_;
  }

  const nlohmann::json& value_;
  const Json* around_ = nullptr;
  const char* name_ = nullptr;
  size_t index_ = 0;
};

}  // namespace tower::exported
