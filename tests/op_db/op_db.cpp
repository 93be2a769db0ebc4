// Reading the database's text: files to entries (load), and a sample's text to arguments, guided by the schema
// (parse_sample). The grammar is described in op_db.h.
#include "op_db/op_db.h"

#include <ATen/core/jit_type.h>

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <functional>
#include <regex>
#include <sstream>
#include <stdexcept>

#include "core/torch_version.h"
#include "support/device.h"

namespace op_db {
namespace {

std::string trimmed(const std::string& text) {
  const auto first = text.find_first_not_of(" \t\r");
  if (first == std::string::npos) return "";
  return text.substr(first, text.find_last_not_of(" \t\r") - first + 1);
}

// Splits at `separator` outside of brackets of any kind and of quotes.
std::vector<std::string> split(const std::string& text, char separator) {
  std::vector<std::string> parts(1);
  int depth = 0;
  bool quoted = false;
  for (const char c : text) {
    if (c == '\'') quoted = !quoted;
    if (c == '[' || c == '{' || c == '(') ++depth;
    if (c == ']' || c == '}' || c == ')') --depth;
    if (c == separator && depth == 0 && !quoted) {
      parts.emplace_back();
    } else {
      parts.back() += c;
    }
  }
  for (auto& part : parts) part = trimmed(part);
  if (parts.size() == 1 && parts[0].empty()) parts.clear();
  return parts;
}

// ---- the text of one argument --------------------------------------------------------------------------------------

bool is_tensor_text(const std::string& text) {
  return text.size() > 2 && std::string("TCRIB").find(text[0]) != std::string::npos && text[1] == '{';
}

const std::map<std::string, at::ScalarType> kDtypes = {{"float64", at::kDouble}, {"float32", at::kFloat},
                                                       {"int64", at::kLong},     {"int32", at::kInt},
                                                       {"bool", at::kBool},      {"complex128", at::kComplexDouble}};
const std::map<std::string, at::MemoryFormat> kFormats = {{"contiguous_format", at::MemoryFormat::Contiguous},
                                                          {"preserve_format", at::MemoryFormat::Preserve},
                                                          {"channels_last", at::MemoryFormat::ChannelsLast}};

class ArgumentParser {
 public:
  ArgumentParser(Sample& sample, size_t arg, at::ScalarType tested) : sample_(sample), arg_(arg), tested_(tested) {}

  // Non-tensor values are returned; tensors become leaves and leave an empty place.
  c10::IValue parse(const c10::Type& type, const std::string& text) {
    if (const auto* optional = type.castRaw<c10::OptionalType>()) {
      return text == "None" ? c10::IValue() : parse(*optional->getElementType(), text);
    }
    if (const auto* list = type.castRaw<c10::ListType>()) return parse_list(*list->getElementType(), text);
    return parse_one(type, text);
  }

 private:
  c10::IValue parse_list(const c10::Type& element, const std::string& text) {
    std::vector<std::string> parts = {text};
    if (text.front() == '[') parts = split(text.substr(1, text.size() - 2), ',');
    if (holds_tensors(element)) return parse_tensor_list(element, parts);
    const auto kind = element.kind();
    if (kind == c10::TypeKind::IntType || kind == c10::TypeKind::SymIntType) {
      c10::List<int64_t> list;
      for (const auto& part : parts) list.push_back(std::stoll(part));
      return list;
    }
    if (kind == c10::TypeKind::FloatType) {
      c10::List<double> list;
      for (const auto& part : parts) list.push_back(std::stod(part));
      return list;
    }
    if (kind == c10::TypeKind::BoolType) {
      c10::List<bool> list;
      for (const auto& part : parts) list.push_back(part == "True");
      return list;
    }
    if (kind == c10::TypeKind::NumberType) {
      c10::impl::GenericList list(c10::NumberType::get());
      for (const auto& part : parts) list.push_back(parse_number(part));
      return list;
    }
    throw std::runtime_error("cannot spell a list of " + element.str());
  }

  static bool holds_tensors(const c10::Type& element) {
    const auto* optional = element.castRaw<c10::OptionalType>();
    return (optional != nullptr ? optional->getElementType()->kind() : element.kind()) == c10::TypeKind::TensorType;
  }

  c10::IValue parse_tensor_list(const c10::Type& element, const std::vector<std::string>& parts) {
    for (size_t i = 0; i < parts.size(); ++i) {
      if (parts[i] != "None") sample_.leaves.push_back({arg_, i, parse_tensor_spec(parts[i])});
    }
    if (element.kind() == c10::TypeKind::OptionalType) {
      c10::List<std::optional<at::Tensor>> list;
      list.resize(parts.size());
      return list;
    }
    c10::List<at::Tensor> list;
    list.resize(parts.size());
    return list;
  }

  c10::IValue parse_one(const c10::Type& type, const std::string& text) {
    switch (type.kind()) {
      case c10::TypeKind::TensorType:
        if (!is_tensor_text(text)) throw std::runtime_error("expected a tensor, got '" + text + "'");
        sample_.leaves.push_back({arg_, std::nullopt, parse_tensor_spec(text)});
        return {};
      case c10::TypeKind::BoolType:
        return text == "True";
      case c10::TypeKind::StringType:
        return text.substr(1, text.size() - 2);
      case c10::TypeKind::FloatType:
        return std::stod(text);
      case c10::TypeKind::NumberType:
        return parse_number(text);
      default:
        return parse_integer_like(type, text);
    }
  }

  // dtypes, memory formats, layouts and devices are integers or their own kinds depending on LibTorch's version.
  c10::IValue parse_integer_like(const c10::Type& type, const std::string& text) {
    if (text == "T") return tested_;
    if (text == "cpu") return c10::Device(c10::kCPU);
    if (text == "strided") return c10::kStrided;
    if (const auto dtype = kDtypes.find(text); dtype != kDtypes.end()) return dtype->second;
    if (const auto format = kFormats.find(text); format != kFormats.end()) return format->second;
    size_t used = 0;
    const int64_t value = std::stoll(text, &used);
    if (used != text.size()) throw std::runtime_error("cannot read '" + text + "' as " + type.str());
    return value;
  }

  static c10::IValue parse_number(const std::string& text) {
    if (text == "True" || text == "False") return text == "True";
    if (text.back() == 'j') {  // 1+2j
      size_t used = 0;
      const double real = std::stod(text, &used);
      return c10::complex<double>(real, std::stod(text.substr(used)));
    }
    const bool integral = text.find_first_not_of("-0123456789") == std::string::npos;
    return integral ? c10::IValue(static_cast<int64_t>(std::stoll(text))) : c10::IValue(std::stod(text));
  }

  Sample& sample_;
  size_t arg_;
  at::ScalarType tested_;
};

// ---- files ---------------------------------------------------------------------------------------------------------

class FileReader {
 public:
  FileReader(std::filesystem::path path, std::vector<Entry>& entries) : path_(std::move(path)), entries_(entries) {}

  void read() {
    std::ifstream file(path_);
    for (std::string line; std::getline(file, line);) {
      ++line_number_;
      try {
        read_line(line.substr(0, line.find('#')));
      } catch (const std::exception& error) {
        throw std::runtime_error(path_.string() + ":" + std::to_string(line_number_) + ": " + error.what());
      }
    }
  }

 private:
  void read_line(const std::string& line) {
    const std::string text = trimmed(line);
    if (text.empty()) return;
    if (text[0] == '@' && line[0] == '@') return define_macro(text);
    if (line[0] != ' ') return begin_entries(text);
    if (text[0] == '|') return add_samples(text.substr(1), "");
    if (text[0] == '!') return add_samples(text.substr(1), "!");
    if (text[0] == '-') return add_note(text.substr(1));
    throw std::runtime_error("expected |, ! or - at the start of '" + text + "'");
  }

  void define_macro(const std::string& text) {
    const auto equals = text.find('=');
    macros_[trimmed(text.substr(1, equals - 1))] = text.substr(equals + 1);
  }

  void begin_entries(const std::string& text) {
    const auto bar = text.find('|');
    std::string head = text.substr(0, bar);
    std::string flags;
    if (const auto bracket = head.find('['); bracket != std::string::npos) {
      flags = head.substr(bracket + 1, head.find(']') - bracket - 1);
      head = head.substr(0, bracket);
    }
    first_current_ = entries_.size();
    std::istringstream names(head);
    for (std::string name; names >> name;) {
      Entry entry;
      entry.name = name;
      entry.family = path_.stem().string();
      const auto dot = name.find('.');
      const std::string full_name = entry.full_name();
      const std::string base = full_name.substr(0, full_name.find('.'));
      const std::string overload = dot == std::string::npos ? "" : name.substr(dot + 1);
      entry.op = c10::Dispatcher::singleton().findSchema({base, overload});
      if (!entry.op && tower::torch_version::lacks(base)) continue;
      if (!entry.op)
        throw std::runtime_error("LibTorch has no operator " + base +
                                 (dot == std::string::npos ? "" : name.substr(dot)));
      std::istringstream words(flags);
      for (std::string flag; words >> flag;) set_flag(entry, flag);
      if (const auto [what, why] = tower::torch_version::exception(base); what) entry.notes[what] = why;
      entries_.push_back(std::move(entry));
    }
    if (bar != std::string::npos) add_samples(text.substr(bar + 1), "");
  }

  static void set_flag(Entry& entry, const std::string& flag) {
    if (flag == "complex") {
      entry.complex = true;
    } else if (flag == "complex_only") {
      entry.complex = true;
      entry.real = false;
    } else if (flag == "triples") {
      entry.triples = true;
    } else if (flag == "fallback") {
      entry.fallback = true;
    } else if (flag == "by_address") {
      entry.by_address = true;
    } else if (flag == "by_data") {
      entry.by_data = true;
    } else if (flag == "unspecified") {
      entry.unspecified = true;
    } else {
      throw std::runtime_error("unknown flag '" + flag + "'");
    }
  }

  void add_samples(const std::string& text, const std::string& prefix) {
    for (const auto& sample : split(text, '|')) {
      if (sample.empty()) throw std::runtime_error("an empty sample; an operator without arguments is spelled '()'");
      if (sample[0] == '@') {
        add_samples(expand(sample), prefix);
      } else {
        for (size_t i = first_current_; i < entries_.size(); ++i) entries_[i].sample_texts.push_back(prefix + sample);
      }
    }
  }

  // @name(a; b) with $1 and $2 replaced; "T{2}:" with an empty modifier is a plain T{2}.
  std::string expand(const std::string& use) {
    const auto open = use.find('(');
    const std::string name = use.substr(1, open - 1);
    if (macros_.count(name) == 0) throw std::runtime_error("no list of samples is called @" + name);
    std::string text = macros_[name];
    auto values = split(use.substr(open + 1, use.rfind(')') - open - 1), ';');
    values.resize(9);
    for (size_t i = 0; i < values.size(); ++i) {
      const std::string hole = "$" + std::to_string(i + 1);
      for (auto at = text.find(hole); at != std::string::npos; at = text.find(hole, at + values[i].size())) {
        text.replace(at, hole.size(), values[i]);
      }
    }
    return text;
  }

  void add_note(const std::string& text) {
    const auto colon = text.find(':');
    if (colon == std::string::npos) throw std::runtime_error("a note needs a reason after a colon");
    const std::string what = trimmed(text.substr(0, colon));
    std::istringstream words(what);
    std::string keyword, value;
    words >> keyword >> value;
    for (size_t i = first_current_; i < entries_.size(); ++i) {
      Entry& entry = entries_[i];
      const bool has_value = keyword == "outs" || keyword == "tolerance" || keyword == "compiled";
      entry.notes[has_value ? keyword : what] = trimmed(text.substr(colon + 1));
      if (keyword == "tolerance") entry.tolerance = std::stod(value);
      if (keyword == "compiled") entry.compiled_samples = std::stoul(value);
      if (keyword == "outs") {
        for (const auto& output : split(value, ',')) entry.differentiable_outputs.push_back(std::stoll(output));
      }
    }
  }

  std::filesystem::path path_;
  std::vector<Entry>& entries_;
  std::map<std::string, std::string> macros_;
  size_t first_current_ = 0;
  int line_number_ = 0;
};

uint64_t hash_of(const std::string& text) {
  uint64_t hash = 1469598103934665603ULL;
  for (const char c : text) hash = (hash ^ static_cast<unsigned char>(c)) * 1099511628211ULL;
  return hash;
}

}  // namespace

std::vector<Entry> load(const std::string& folder) {
  std::vector<std::filesystem::path> files;
  for (const auto& file : std::filesystem::directory_iterator(folder)) {
    if (file.path().extension() == ".ops") files.push_back(file.path());
  }
  std::sort(files.begin(), files.end());
  std::vector<Entry> entries;
  for (const auto& file : files) FileReader(file, entries).read();
  if (const char* filter = std::getenv("TOWER_OPS")) {
    const std::regex wanted(filter);
    std::erase_if(entries, [&](const Entry& entry) { return !std::regex_search(entry.name, wanted); });
  }
  return entries;
}

Sample parse_sample(const Entry& entry, const std::string& text, at::ScalarType dtype) {
  Sample sample;
  sample.text = text;
  sample.bad = text[0] == '!';
  const auto& arguments = entry.op->schema().arguments();
  sample.arguments.resize(arguments.size());
  std::vector<bool> given(arguments.size());
  const std::string body = trimmed(sample.bad ? text.substr(1) : text);
  size_t position = 0;
  for (const auto& part : body == "()" ? std::vector<std::string>{} : split(body, ',')) {
    const auto equals = part.find('=');
    std::string value = part;
    size_t index = position++;
    if (equals != std::string::npos) {
      const std::string name = trimmed(part.substr(0, equals));
      value = trimmed(part.substr(equals + 1));
      const auto found =
          std::find_if(arguments.begin(), arguments.end(), [&](const auto& a) { return a.name() == name; });
      index = static_cast<size_t>(found - arguments.begin());
    }
    if (index >= arguments.size()) throw std::runtime_error(entry.name + ": no argument for '" + part + "'");
    given[index] = true;
    sample.arguments[index] = ArgumentParser(sample, index, dtype).parse(*arguments[index].type(), value);
  }
  for (size_t i = 0; i < arguments.size(); ++i) {
    if (given[i]) continue;
    if (arguments[i].name() == "device" && sample.leaves.empty()) {
      sample.arguments[i] = support::device();
    } else if (arguments[i].default_value()) {
      sample.arguments[i] = *arguments[i].default_value();
    } else if (arguments[i].type()->kind() != c10::TypeKind::OptionalType) {
      throw std::runtime_error(entry.name + ": sample '" + text + "' lacks argument " + arguments[i].name());
    }
  }
  return sample;
}

Tensors make_leaves(const Entry& entry, const Sample& sample, at::ScalarType dtype, int example) {
  Tensors leaves;
  for (size_t i = 0; i < sample.leaves.size(); ++i) {
    const std::string key = entry.name + "|" + sample.text + "|" + std::to_string(i) + "|" + std::to_string(example);
    leaves.push_back(make_tensor(sample.leaves[i].spec, dtype, hash_of(key)));
  }
  return leaves;
}

Stack fill_in(const Sample& sample, const Tensors& leaves) {
  Stack stack;
  // Lists are handles: copy those that receive tensors, so that the sample stays as it was parsed.
  for (const auto& argument : sample.arguments)
    stack.push_back(argument.isList() ? c10::IValue(argument.toList().copy()) : argument);
  for (size_t i = 0; i < leaves.size(); ++i) {
    const Leaf& leaf = sample.leaves[i];
    if (!leaf.index) {
      stack[leaf.arg] = leaves[i];
    } else if (stack[leaf.arg].isTensorList()) {
      stack[leaf.arg].toTensorList().set(*leaf.index, leaves[i]);
    } else {
      stack[leaf.arg].toList().set(*leaf.index, leaves[i]);
    }
  }
  return stack;
}

Tensors tensors_of(const Stack& results) {
  Tensors tensors;
  for (const auto& result : results) {
    if (result.isTensor()) tensors.push_back(result.toTensor());
    if (result.isTensorList()) {
      for (const at::Tensor& tensor : result.toTensorVector()) tensors.push_back(tensor);
    }
  }
  return tensors;
}

Tensors call(const c10::OperatorHandle& op, const Sample& sample, const Tensors& leaves) {
  Stack stack = fill_in(sample, leaves);
  op.callBoxed(stack);
  return tensors_of(stack);
}

}  // namespace op_db
