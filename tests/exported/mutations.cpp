#include "exported/mutations.h"

#if __has_include(<nlohmann/json.hpp>)
#include <cstdint>
#include <iterator>
#include <nlohmann/json.hpp>
#include <vector>

namespace exported_models {
namespace {

using nlohmann::json;

template <class List>
auto& any_of(List& list, Draw& draw) {
  return list[draw() % std::size(list)];
}

/// All values of a document, and those of them that are lists, objects with fields, names.
struct Values {
  std::vector<json*> all, lists, objects, names;

  explicit Values(json& document) { add(document); }

 private:
  void add(json& value) {
    all.push_back(&value);
    if (value.is_array() && !value.empty()) lists.push_back(&value);
    if (value.is_object() && !value.empty()) objects.push_back(&value);
    if (value.is_structured())
      for (auto field = value.begin(); field != value.end(); ++field) {
        if (value.is_object() && field.key() == "name" && field->is_string()) names.push_back(&*field);
        add(*field);
      }
  }
};

json another_value(Draw& draw) {
  static const json kOthers[] = {nullptr,
                                 true,
                                 -1,
                                 7,
                                 1.5,
                                 INT64_MAX,
                                 INT64_MIN,
                                 UINT64_MAX,
                                 int64_t{1} << 32,
                                 "",
                                 "x",
                                 "../../x",
                                 std::string("a\0b", 3),
                                 std::string(100000, 'x'),
                                 json::array(),
                                 json::object(),
                                 {{"as_int", INT64_MAX}},
                                 {{"as_name", "nothing"}}};
  return any_of(kOthers, draw);
}

}  // namespace

std::string with_other_json(const std::string& text, Draw& draw) {
  json document = json::parse(text);
  const Values values(document);
  const auto kind = draw() % 8;
  const bool has_what_it_takes = kind == 4 ? !values.names.empty() : !values.lists.empty() && !values.objects.empty();
  switch (has_what_it_takes ? kind : 7) {
    case 0: {
      json& list = *any_of(values.lists, draw);
      list.erase(list.begin() + static_cast<std::ptrdiff_t>(draw() % list.size()));
      break;
    }
    case 1: {
      json& object = *any_of(values.objects, draw);
      object.erase(std::next(object.begin(), static_cast<std::ptrdiff_t>(draw() % object.size())));
      break;
    }
    case 2: {
      json& list = *any_of(values.lists, draw);
      const json again = any_of(list, draw);
      list.push_back(again);
      break;
    }
    case 3: {
      json& list = *any_of(values.lists, draw);
      std::swap(any_of(list, draw), any_of(list, draw));
      break;
    }
    case 4:
      *any_of(values.names, draw) = json(*any_of(values.names, draw));
      break;
    case 5: {
      json& list = *any_of(values.lists, draw);
      const json element = any_of(list, draw);
      for (int n = 0; n < 300; ++n) list.push_back(element);
      break;
    }
    case 6: {
      json& value = *any_of(values.all, draw);
      for (int n = 0; n < 1000; ++n) value = json::array({std::move(value)});
      break;
    }
    default:
      *any_of(values.all, draw) = another_value(draw);
  }
  return document.dump();
}

}  // namespace exported_models
#endif

namespace exported_models {

std::string with_other_bytes(std::string text, Draw& draw) {
  if (text.empty()) return text;
  const size_t at = draw() % text.size(), length = draw() % 8;
  switch (draw() % 3) {
    case 0:
      text[at] = static_cast<char>(text[at] ^ (1 << draw() % 8));
      break;
    case 1:
      text.erase(at, length);
      break;
    default:
      text.insert(draw() % text.size(), text.substr(at, length));
  }
  return text;
}

}  // namespace exported_models
