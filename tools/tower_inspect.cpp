// tower-inspect FILE [MODEL]: what a model that Python exported (tower/exported.h) takes, gives and calls, and how each
// operator is served under the transforms; or why it cannot be loaded.
#include <tower/exported.h>

#include <exception>
#include <iostream>

int main(int argc, char** argv) {
  if (argc != 2 && argc != 3) {
    std::cerr << "tower-inspect FILE [MODEL]\n";
    return 2;
  }
  try {
    std::cout << tower::dynamic::load_exported(argv[1], {.model = argc == 3 ? argv[2] : ""}).report();
    return 0;
  } catch (const std::exception& e) {
    std::cerr << e.what() << "\n";
    return 1;
  }
}
