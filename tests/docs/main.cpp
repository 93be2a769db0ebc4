// Runs the code of the documents.
//   docs_tests [Google Test's flags]
//   docs_tests --coverage               prints what docs/coverage.md should hold
#include <iostream>
#include <string_view>

#include "support.h"

int main(int argc, char** argv) {
  if (argc == 2 && std::string_view(argv[1]) == "--coverage") {
    std::cout << docs::coverage_document();
    return 0;
  }
  testing::InitGoogleTest(&argc, argv);
  docs::go_to_repository();
  return RUN_ALL_TESTS();
}
