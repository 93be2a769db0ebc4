// tower-export FILE [options]: a model that Python exported (tower/exported.h), or a derivative of it, as a C library
// (tower/export_c.h). docs/c_libraries.md has the options; without any, it says them.
#include <ATen/Functions.h>
#include <c10/util/accumulate.h>
#include <tower/dynamic.h>
#include <tower/errors.h>
#include <tower/export_c.h>
#include <tower/exported.h>

#include <algorithm>
#include <cctype>
#include <exception>
#include <filesystem>
#include <iostream>
#include <map>
#include <optional>
#include <sstream>
#include <string>
#include <vector>

namespace {

namespace td = tower::dynamic;

constexpr const char* kUsage = R"(tower-export FILE [options]

  --derivative KIND   none (the model itself), grad, jacfwd, jacrev or hessian; grad and hessian are of a model whose
                      result is one number
  --by NAMES          what that is by: arguments by their names, x,y; without it, all that are of floats
  --batch NAMES       what each example has of its own; without it, all arguments, and "none" for one example a call
  --size NAME=NUMBER  what a size is that varies in the file; may be repeated
  --name NAME         of the C function; without it, the file's name
  --folder FOLDER     where the library is written
  --target TARGET     x86-64, x86-64-v2, x86-64-v3, x86-64-v4 or aarch64; without it, this CPU
  --also KINDS        ll, s: the kernels as LLVM's text and as assembler
  --casadi            as CasADi calls external functions, which are of one example
  --model NAME        which model of the file
)";

struct Options {
  std::string file, derivative = "none", model;
  std::optional<std::string> by, batch;
  std::map<std::string, int64_t> sizes;
  std::string name;
  tower::ExportOptions library;
};

[[noreturn]] void fail(const std::string& why) { throw tower::ArgumentError("tower-export: " + why); }

std::vector<std::string> parts_of(const std::string& list) {
  std::vector<std::string> parts;
  std::istringstream in(list);
  for (std::string part; std::getline(in, part, ',');)
    if (!part.empty()) parts.push_back(part);
  return parts;
}

int64_t number_of(const std::string& text) {
  // Beyond nine digits nothing has memory.
  if (text.empty() || text.size() > 9 ||
      !std::all_of(text.begin(), text.end(), [](unsigned char c) { return std::isdigit(c) != 0; }))
    fail("'" + text + "' is no size.");
  return std::stoll(text);
}

Options options_of(const std::vector<std::string>& words) {
  Options options;
  for (size_t k = 0; k < words.size(); ++k) {
    const std::string& word = words[k];
    const auto next = [&]() -> const std::string& {
      if (k + 1 == words.size()) fail(word + " needs a word behind it.");
      return words[++k];
    };
    if (word == "--derivative") options.derivative = next();
    else if (word == "--by") options.by = next();
    else if (word == "--batch") options.batch = next();
    else if (word == "--name") options.name = next();
    else if (word == "--folder") options.library.folder = next();
    else if (word == "--target") options.library.target = next();
    else if (word == "--also") options.library.also = parts_of(next());
    else if (word == "--casadi") options.library.abi = tower::CAbi::casadi;
    else if (word == "--model") options.model = next();
    else if (word == "--size") {
      const std::string& size = next();
      const size_t equals = size.find('=');
      if (equals == std::string::npos) fail("--size is NAME=NUMBER, not " + size + ".");
      options.sizes[size.substr(0, equals)] = number_of(size.substr(equals + 1));
    } else if (word.rfind("--", 0) == 0) fail("there is no option " + word + ".\n\n" + kUsage);
    else if (!options.file.empty()) fail("there are two files, " + options.file + " and " + word + ".");
    else options.file = word;
  }
  if (options.file.empty()) fail(std::string("which file?\n\n") + kUsage);
  if (options.name.empty()) options.name = std::filesystem::path(options.file).stem().string();
  return options;
}

// A tensor among the model's arguments.
struct Argument {
  std::string name;
  at::ScalarType dtype;
  std::vector<int64_t> sizes;

  bool is_of_floats() const { return at::isFloatingType(dtype); }
};

// From "Float [s0, 3]".
Argument argument_of(const std::string& name, const std::string& text, const std::map<std::string, int64_t>& varying) {
  Argument argument{name, at::ScalarType::Undefined, {}};
  const size_t open = text.find('['), close = text.rfind(']');
  const std::string dtype = text.substr(0, text.find(' '));
  for (const at::ScalarType known : {at::kDouble, at::kFloat, at::kHalf, at::kBFloat16, at::kLong, at::kInt, at::kBool})
    if (dtype == c10::toString(known)) argument.dtype = known;
  if (argument.dtype == at::ScalarType::Undefined || open == std::string::npos || close == std::string::npos)
    fail(name + " is " + text + ", of which no C function is written.");
  for (std::string size : parts_of(text.substr(open + 1, close - open - 1))) {
    size.erase(0, size.find_first_not_of(' '));
    const auto given = varying.find(size);
    if (given == varying.end() && !std::isdigit(static_cast<unsigned char>(size[0])))
      fail("the size " + size + " of " + name + ", " + text + ", varies: say what it is by --size " + size +
           "=NUMBER. (The number of examples need not vary in the file: export the model for one.)");
    argument.sizes.push_back(given == varying.end() ? number_of(size) : given->second);
  }
  return argument;
}

void find_arguments(const tower::ExportedTree& tree, const std::string& name,
                    const std::map<std::string, int64_t>& varying, std::vector<Argument>& found) {
  if (tree.kind == tower::ExportedTree::Kind::leaf) {
    if (tree.leaf == tower::ExportedTree::Leaf::tensor) found.push_back(argument_of(name, tree.text, varying));
    return;
  }
  for (size_t k = 0; k < tree.children.size(); ++k) {
    const std::string own = k < tree.keys.size() ? tree.keys[k] : std::to_string(k);
    find_arguments(tree.children[k], name.empty() ? own : name + "." + own, varying, found);
  }
}

std::vector<int64_t> positions_of(const std::string& names, const std::vector<Argument>& arguments,
                                  const char* option) {
  std::vector<int64_t> positions;
  for (const std::string& name : parts_of(names)) {
    const auto found =
        std::find_if(arguments.begin(), arguments.end(), [&](const Argument& a) { return a.name == name; });
    if (found == arguments.end()) {
      std::string all;
      for (const Argument& a : arguments) all += " " + a.name;
      fail(std::string(option) + ": the model has no tensor " + name + " among its arguments, which are" + all + ".");
    }
    positions.push_back(found - arguments.begin());
  }
  return positions;
}

td::Function derivative_of(const td::Function& model, const Options& options, const std::vector<Argument>& arguments) {
  if (options.derivative == "none") return model;
  std::vector<int64_t> by;
  if (options.by) by = positions_of(*options.by, arguments, "--by");
  else
    for (size_t k = 0; k < arguments.size(); ++k)
      if (arguments[k].is_of_floats()) by.push_back(static_cast<int64_t>(k));
  if (by.empty()) fail("there is nothing that the derivative could be by.");
  if (options.derivative == "grad") return td::grad(model, by);
  if (options.derivative == "jacfwd") return td::jacfwd(model, by);
  if (options.derivative == "jacrev") return td::jacrev(model, by);
  if (options.derivative == "hessian") return td::hessian(model, by);
  fail("--derivative is none, grad, jacfwd, jacrev or hessian, not " + options.derivative + ".");
}

// Values that nothing fails for, as far as that can be: floats about one, indices of what is first.
at::Tensor some_of(const Argument& argument, std::optional<int64_t> examples) {
  std::vector<int64_t> sizes = argument.sizes;
  if (examples) sizes.insert(sizes.begin(), *examples);
  if (!argument.is_of_floats()) return at::zeros(sizes, at::dtype(argument.dtype));
  const int64_t count = c10::multiply_integers(sizes);
  return at::arange(1, count + 1, at::kDouble).mul(0.6180339887498949).frac().add(0.5).view(sizes).to(argument.dtype);
}

void write(const Options& options) {
  const td::ExportedModel model = td::load_exported(options.file, {.model = options.model});
  std::vector<Argument> arguments;
  find_arguments(model.arguments(), "", options.sizes, arguments);
  const td::Function wanted = derivative_of(model, options, arguments);

  std::string batch = options.batch.value_or("");
  if (options.library.abi == tower::CAbi::casadi && !options.batch) batch = "none";
  const bool is_of_one = batch == "none";
  td::Dims dims(arguments.size(), is_of_one || options.batch ? std::nullopt : std::optional<int64_t>(0));
  if (!is_of_one && options.batch)
    for (const int64_t k : positions_of(batch, arguments, "--batch")) dims[static_cast<size_t>(k)] = 0;
  const bool has_examples = std::any_of(dims.begin(), dims.end(), [](const auto& dim) { return dim.has_value(); });
  if (!has_examples && !is_of_one) fail("no argument is an example's own: --batch none is for one example a call.");
  // Results are as many as a call has.
  const td::Function for_each = [=](const td::Tensors& x) {
    return has_examples ? td::vmap(wanted, dims, {0})(x) : wanted(x);
  };
  const td::Function compiled = td::compile(for_each);
  // Two numbers of examples: it is for any.
  for (const int64_t n : {29, 31}) {
    td::Tensors x;
    for (size_t k = 0; k < arguments.size(); ++k)
      x.push_back(some_of(arguments[k], dims[k] ? std::optional(n) : std::nullopt));
    compiled(x);
  }
  td::export_c(compiled, options.name, options.library);
  std::cout << (std::filesystem::path(options.library.folder) / options.name).string()
            << ".h: " << (options.derivative == "none" ? "" : options.derivative + " of ") << model.signature() << "\n";
}

}  // namespace

int main(int argc, char** argv) {
  try {
    write(options_of({argv + 1, argv + argc}));
    return 0;
  } catch (const std::exception& e) {
    std::cerr << e.what() << "\n";
    return 1;
  }
}
