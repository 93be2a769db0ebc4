// tower-export FILE [options]: a model that Python exported (tower/exported.h), or a derivative of it, as a C library
// (tower/export_c.h). docs/c_libraries.md has the options, and --help.
#include <ATen/Functions.h>
#include <c10/util/accumulate.h>
#include <tower/dynamic.h>
#include <tower/errors.h>
#include <tower/export_c.h>
#include <tower/exported.h>

#include <CLI/CLI.hpp>
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

// Beyond nine digits nothing has memory.
bool is_size(const std::string& text) {
  return !text.empty() && text.size() <= 9 &&
         std::all_of(text.begin(), text.end(), [](unsigned char c) { return std::isdigit(c) != 0; });
}

std::string why_no_named_size(const std::string& text) {
  const size_t equals = text.find('=');
  if (equals == std::string::npos) return "it is NAME=NUMBER, not " + text;
  const std::string number = text.substr(equals + 1);
  return is_size(number) ? "" : "'" + number + "' is no size";
}

void describe(CLI::App& app, Options& options) {
  app.option_defaults()->multi_option_policy(CLI::MultiOptionPolicy::Throw);
  app.add_option("FILE", options.file, "of torch.export.save")->required();
  app.add_option("--derivative", options.derivative,
                 "the model itself, or what of it; grad and hessian are of a model whose result is one number")
      ->check(CLI::IsMember({"none", "grad", "jacfwd", "jacrev", "hessian"}))
      ->capture_default_str();
  app.add_option("--by", options.by, "arguments that the derivative is by, x,y; without it, all that are of floats");
  app.add_option("--batch", options.batch,
                 "arguments that each example has of its own, x,y; without it, all, and with none a call is for one "
                 "example");
  app.add_option_function<std::vector<std::string>>(
         "--size",
         [&](const std::vector<std::string>& sizes) {
           for (const std::string& size : sizes) {
             const size_t equals = size.find('=');
             options.sizes[size.substr(0, equals)] = std::stoll(size.substr(equals + 1));
           }
         },
         "a size that varies in the file; may be repeated")
      ->check(why_no_named_size)
      ->type_name("NAME=NUMBER")
      ->multi_option_policy(CLI::MultiOptionPolicy::TakeAll)
      ->allow_extra_args(false);
  app.add_option("--name", options.name, "of the C function; without it, the file's name");
  app.add_option("--folder", options.library.folder, "where the library is written")->capture_default_str();
  app.add_option("--target", options.library.target,
                 "x86-64, x86-64-v2, x86-64-v3, x86-64-v4 or aarch64; without it, this CPU");
  app.add_option("--also", options.library.also, "ll,s: the kernels as LLVM's text and as assembler")
      ->delimiter(',')
      ->multi_option_policy(CLI::MultiOptionPolicy::TakeAll)
      ->allow_extra_args(false);
  app.add_flag_callback(
      "--casadi", [&] { options.library.abi = tower::CAbi::casadi; },
      "as CasADi calls external functions, which are of one example");
  app.add_option("--model", options.model, "which model of the file");
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
    if (given == varying.end() && !is_size(size))
      fail("the size " + size + " of " + name + ", " + text + ", varies: say what it is by --size " + size +
           "=NUMBER. (The number of examples need not vary in the file: export the model for one.)");
    argument.sizes.push_back(given == varying.end() ? std::stoll(size) : given->second);
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
  return td::hessian(model, by);
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
  Options options;
  CLI::App app("Writes a model that Python exported, or a derivative of it, as a C library.", "tower-export");
  describe(app, options);
  CLI11_PARSE(app, argc, argv);
  if (options.name.empty()) options.name = std::filesystem::path(options.file).stem().string();
  try {
    write(options);
    return 0;
  } catch (const std::exception& e) {
    std::cerr << e.what() << "\n";
    return 1;
  }
}
