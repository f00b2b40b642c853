#pragma once

// Captures the log of a test's process while the object lives. It reads stdout, spdlog's default
// destination. So other threads may log meanwhile, which replacing the logger would not allow.

#include <cstdio>
#include <string>

#include "gtest/gtest.h"

namespace poseidon::testing_support {

class LogCapture {
 public:
  LogCapture() { ::testing::internal::CaptureStdout(); }
  ~LogCapture() { end(); }
  LogCapture(const LogCapture&) = delete;
  LogCapture& operator=(const LogCapture&) = delete;

  /// "[time] [warning] the text", a line each. Nothing is taken down any more.
  const std::string& end() {
    if (is_ended_) return text_;
    is_ended_ = true;
    text_ = ::testing::internal::GetCapturedStdout();
    std::fputs(text_.c_str(), stdout);  // failed expectations are among it
    return text_;
  }

 private:
  bool is_ended_ = false;
  std::string text_;
};

}  // namespace poseidon::testing_support
