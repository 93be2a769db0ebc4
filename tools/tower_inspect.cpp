// tower-inspect FILE [MODEL]: what a model that Python exported (tower/exported.h) takes, gives and calls, and how each
// operator is served under the transforms; or why it cannot be loaded.
#include <tower/exported.h>

#include <CLI/CLI.hpp>
#include <exception>
#include <iostream>
#include <string>

int main(int argc, char** argv) {
  std::string file, model;
  CLI::App app("Says what a model that Python exported takes, gives and calls.", "tower-inspect");
  app.add_option("FILE", file, "of torch.export.save")->required();
  app.add_option("MODEL", model, "which of the file's models");
  CLI11_PARSE(app, argc, argv);
  try {
    std::cout << tower::dynamic::load_exported(file, {.model = model}).report();
    return 0;
  } catch (const std::exception& e) {
    std::cerr << e.what() << "\n";
    return 1;
  }
}
