// What the code of the documents sees, and the checks that tests/docs/extract makes of it.
#pragma once

#include <ATen/Functions.h>
#include <ATen/TensorOperators.h>
#include <ATen/core/Tensor.h>
#include <gtest/gtest.h>
#include <tower/tower.h>

#include <functional>
#include <iostream>
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

/// The folder of the operator database.
std::string op_db_folder();

}  // namespace docs

using at::Tensor;

/// The message of the exception that `f` ends with.
inline std::string error_of(const std::function<void()>& f) {
  try {
    f();
  } catch (const tower::Error& e) {
    return e.what();
  } catch (const c10::Error& e) {
    return e.what_without_backtrace();
  }
  return "no error";
}
