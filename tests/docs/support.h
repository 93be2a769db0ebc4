// The checks that tests/docs/extract makes of the code of the documents, which brings what it needs itself.
#pragma once

#include <gtest/gtest.h>

#include <string>

namespace docs {

/// `program` prints `expected` to std::cout, where "…" stands for anything within a line. With such a hole, the order
/// of the lines is free.
void expect_output(void (*program)(), const std::string& expected);

/// The lines of `code` stand one after the other in the file `path` of the repository, whatever their indentation.
void expect_quoted(const std::string& path, const std::string& code);

/// What docs/coverage.md should hold.
std::string coverage_document();

std::string read(const std::string& path);

/// Documents name files from the repository's folder.
void go_to_repository();

/// The folder of the operator database.
std::string op_db_folder();

}  // namespace docs
