#include "coordinator/job_run.h"
#include "gtest/gtest.h"
