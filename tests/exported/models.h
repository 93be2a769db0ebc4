// The models that tests read: exported by the Python whose torch this is (make_models.py), once for all tests.
#pragma once

#include <ATen/core/Tensor.h>
#include <gtest/gtest.h>

#include <map>
#include <string>
#include <vector>

namespace exported_models {

/// Why there are none; empty where there are.
const std::string& why_not();
/// Why a model is not there, which needs what need not be installed; empty where it is.
std::string why_not(const std::string& name);
/// The file of a model.
std::string file(const std::string& name);
/// What Python says of a model: make_models.py has the names.
std::map<std::string, at::Tensor> expected(const std::string& name);
/// Those of the names `begin`0, `begin`1, … that are there, by number.
std::map<size_t, at::Tensor> numbered(const std::map<std::string, at::Tensor>& all, const std::string& begin);

/// Skips its tests where there are no models.
class Exported : public testing::Test {
 protected:
  void SetUp() override {
    if (!why_not().empty()) GTEST_SKIP() << why_not();
  }
};

}  // namespace exported_models
