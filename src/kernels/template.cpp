#include "kernels/template.h"

#include <c10/util/Exception.h>

#include <algorithm>

namespace tower::compiler {

const char* scalar(Type type) {
  constexpr const char* names[] = {"double", "float", "i16", "i16", "i64", "i32", "i1"};
  return names[plain(type)];
}
const char* in_memory(Type type) { return type == Type::b1 ? "i8" : scalar(type); }
const char* mangled(Type type) {
  constexpr const char* names[] = {"f64", "f32", "i16", "i16", "i64", "i32", "i1"};
  return names[plain(type)];
}

std::string vector_of(const char* element, int64_t lanes) {
  return "<" + std::to_string(lanes) + " x " + element + ">";
}
std::string vector_of(Type type, int64_t lanes) { return vector_of(scalar(type), lanes); }

Holes holes_of(Type type, int64_t lanes) {
  return {{"L", std::to_string(lanes)},
          {"T", scalar(type)},
          {"V", vector_of(type, lanes)},
          {"M", "v" + std::to_string(lanes) + mangled(type)},
          {"memory", vector_of(in_memory(type), lanes)},
          {"B", vector_of("i1", lanes)},
          {"I", vector_of("i64", lanes)},
          {"S", vector_of("i32", lanes)}};
}

std::string filled(std::string_view text, const Holes& holes, const Holes& more, const std::string& own) {
  const auto value = [&](std::string_view name) -> const std::string& {
    for (const Holes* of : {&holes, &more})
      for (const auto& [hole, value] : *of)
        if (hole == name) return value;
    TORCH_INTERNAL_ASSERT(false, "nothing for {", std::string(name), "} in the template ", std::string(text));
  };
  const auto is_of_name = [](char c) { return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || c == '_'; };
  if (!text.empty() && text.front() == '\n') text.remove_prefix(1);
  std::string result;
  for (size_t at = 0; at < text.size();) {
    const size_t next = text.find_first_of("{~", at);
    result += text.substr(at, next - at);
    if (next == std::string_view::npos) break;
    at = next + 1;
    if (text[next] == '~') {
      result += own;
      continue;
    }
    const auto end = static_cast<size_t>(std::find_if_not(text.begin() + at, text.end(), is_of_name) - text.begin());
    if (end == at || end == text.size() || text[end] != '}') {
      result += '{';
      continue;
    }
    result += value(text.substr(at, end - at));
    at = end + 1;
  }
  return result;
}

std::string loads_of(c10::ArrayRef<const char*> names) {
  std::string loads;
  for (size_t k = 0; k < names.size(); ++k)
    loads += filled(R"(
  %p.{number} = getelementptr i64, ptr %numbers, i64 {k}
  %{number} = load i64, ptr %p.{number}
)",
                    Holes{{"number", names[k]}, {"k", std::to_string(k)}});
  return loads;
}

}  // namespace tower::compiler
