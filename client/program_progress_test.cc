// What a program's calls return and what epochs do with them, by hand and in random sequences
// against a model of the memory.

#include "client/program_progress.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <optional>
#include <random>
#include <string>
#include <vector>

namespace poseidon::program_progress_test {

using Action = ProgramProgress::Action;
using Kind = ProgramProgress::Action::Kind;
using Verdict = ProgramProgress::Verdict;

class ProgramProgressTest : public testing::Test {
 protected:
  void epoch_at(Iteration first, std::uint32_t rank = 0, std::uint32_t workers = 2) {
    progress_.prepare({.first_iteration = first, .rank = rank, .workers = workers});
    progress_.begin();
  }
  void join_at(Iteration first) {
    epoch_at(first);
    ASSERT_EQ(progress_.join().verdict, Verdict::kOk);
    ASSERT_EQ(progress_.iteration(), first);
  }
  void report_all() {
    for (const std::size_t layer : {2u, 1u, 0u}) {
      ASSERT_EQ(progress_.gradient(layer).verdict, Verdict::kOk);
    }
  }
  /// The epoch does all that it can; what it gave to synchronisation.
  std::string drain() {
    std::string did;
    for (Action action = progress_.next(); action.kind != Kind::kNothing;
         action = progress_.next()) {
      if (action.kind == Kind::kGradient) did += " g" + std::to_string(action.layer);
      if (action.kind == Kind::kRates) did += " rates" + std::to_string(action.iteration);
      if (action.kind == Kind::kNorm) {
        did += " norm" + std::to_string(action.iteration);
        progress_.norm_known(action.iteration);
      }
      if (action.kind == Kind::kStep) did += " step" + std::to_string(action.iteration);
      if (action.kind == Kind::kFinish) did += " finish" + std::to_string(action.iteration);
      if (action.kind == Kind::kAwait) {
        did += " a" + std::to_string(action.layer);
        progress_.landed(action.layer);
      }
    }
    return did;
  }
  void wait_all() {
    for (std::size_t l = 0; l < 3; ++l) ASSERT_EQ(progress_.wait(l).verdict, Verdict::kOk);
  }
  ProgramProgress progress_{{"conv", "fc1", "fc2"}};
};

TEST_F(ProgramProgressTest, GivesGradientsInTheirOrderThenTheStepThenAwaitsForward) {
  EXPECT_EQ(progress_.join().verdict, Verdict::kWait);
  join_at(0);
  EXPECT_EQ(drain(), "");
  ASSERT_EQ(progress_.gradient(1).verdict, Verdict::kOk);
  EXPECT_EQ(drain(), " g1") << "before the step";
  ASSERT_EQ(progress_.gradient(2).verdict, Verdict::kOk);
  ASSERT_EQ(progress_.gradient(0).verdict, Verdict::kOk);
  ASSERT_EQ(progress_.step(0.5).verdict, Verdict::kOk);
  EXPECT_EQ(progress_.iteration(), 1);
  EXPECT_EQ(progress_.wait(0).verdict, Verdict::kWait);
  EXPECT_EQ(drain(), " g2 g0 step0 a0 a1 a2");
  wait_all();
  ASSERT_EQ(progress_.gradient(0).verdict, Verdict::kOk);
  EXPECT_EQ(drain(), " g0");
}

TEST_F(ProgramProgressTest, RefusesWhatIsOutOfOrderAndNamesTheLayer) {
  EXPECT_EQ(progress_.gradient(0).message, "poseidon_gradient: call poseidon_join first");
  join_at(0);
  EXPECT_EQ(progress_.join().verdict, Verdict::kInvalid);
  EXPECT_EQ(progress_.gradient(3).message, "poseidon_gradient: layer 3 of a model with 3 layers");
  EXPECT_EQ(progress_.wait(9).verdict, Verdict::kInvalid);
  ASSERT_EQ(progress_.gradient(1).verdict, Verdict::kOk);
  EXPECT_EQ(progress_.gradient(1).message,
            "poseidon_gradient: layer fc1 is reported twice in iteration 0");
  EXPECT_EQ(progress_.step(0).message,
            "poseidon_step: iteration 0 lacks the gradient of conv, fc2: report zeros for a layer "
            "that was not used");
  EXPECT_EQ(progress_.finish().verdict, Verdict::kInvalid) << "in the middle of an iteration";
  ASSERT_EQ(progress_.gradient(0).verdict, Verdict::kOk);
  ASSERT_EQ(progress_.gradient(2).verdict, Verdict::kOk);
  ASSERT_EQ(progress_.step(0).verdict, Verdict::kOk);
  drain();
  ASSERT_EQ(progress_.wait(0).verdict, Verdict::kOk);
  const ProgramProgress::Reply early = progress_.gradient(2);
  EXPECT_EQ(early.verdict, Verdict::kInvalid) << "its memory may still be sent";
  EXPECT_NE(early.message.find("has not waited for fc1, fc2: call poseidon_wait_all"),
            std::string::npos)
      << early.message;
}

TEST_F(ProgramProgressTest, AnEpochAtTheSameIterationSendsWhatWasReported) {
  join_at(0);
  ASSERT_EQ(progress_.gradient(2).verdict, Verdict::kOk);
  ASSERT_EQ(progress_.gradient(1).verdict, Verdict::kOk);
  EXPECT_EQ(drain(), " g2 g1");
  progress_.over();
  ASSERT_EQ(progress_.gradient(0).verdict, Verdict::kOk) << "it never blocks for a silent one";
  EXPECT_EQ(drain(), "") << "no epoch";
  epoch_at(0);
  EXPECT_EQ(drain(), " g2 g1 g0");
  ASSERT_EQ(progress_.step(1).verdict, Verdict::kOk);
  EXPECT_EQ(drain(), " step0 a0 a1 a2");
}

TEST_F(ProgramProgressTest, AStepThatEndsBetweenEpochsIsGivenAsAWhole) {
  join_at(4);
  ASSERT_EQ(progress_.gradient(2).verdict, Verdict::kOk);
  drain();
  progress_.over();
  progress_.prepare({.first_iteration = 4, .rank = 0, .workers = 2});
  ASSERT_EQ(progress_.gradient(1).verdict, Verdict::kOk);
  ASSERT_EQ(progress_.gradient(0).verdict, Verdict::kOk);
  ASSERT_EQ(progress_.step(1).verdict, Verdict::kOk);
  progress_.begin();
  EXPECT_EQ(progress_.wait(0).verdict, Verdict::kWait) << "memory has those of 4";
  EXPECT_EQ(drain(), " g2 g1 g0 step4 a0 a1 a2");
}

TEST_F(ProgramProgressTest, AnEpochOneStepBackRepeatsItWhileTheProgramHasSeenNothingNewer) {
  join_at(0);
  report_all();
  ASSERT_EQ(progress_.step(0.25).verdict, Verdict::kOk);
  EXPECT_EQ(drain(), " g2 g1 g0 step0 a0 a1 a2") << "all have landed";
  progress_.over();
  progress_.prepare({.first_iteration = 0, .rank = 0, .workers = 2});
  EXPECT_EQ(progress_.wait(1).verdict, Verdict::kWait) << "its memory is overwritten just now";
  progress_.begin();
  EXPECT_EQ(drain(), " g2 g1 g0 step0 a0 a1 a2");
  wait_all();
  EXPECT_EQ(progress_.iteration(), 1);
}

TEST_F(ProgramProgressTest, AnEpochOneStepBackRewindsAProgramThatReadsNewerParameters) {
  join_at(0);
  report_all();
  ASSERT_EQ(progress_.step(0.25).verdict, Verdict::kOk);
  drain();
  ASSERT_EQ(progress_.wait(0).verdict, Verdict::kOk);
  progress_.over();
  EXPECT_EQ(progress_.wait(1).verdict, Verdict::kOk) << "nothing has overwritten it yet";
  progress_.prepare({.first_iteration = 0, .rank = 0, .workers = 2});
  EXPECT_EQ(progress_.wait(2).verdict, Verdict::kWait) << "until all of 0 are there";
  progress_.begin();
  EXPECT_EQ(drain(), "");
  EXPECT_EQ(progress_.wait(2).verdict, Verdict::kRewound);
  EXPECT_EQ(progress_.iteration(), 0);
  wait_all();
  report_all();
  ASSERT_EQ(progress_.step(0.25).verdict, Verdict::kOk);
  EXPECT_EQ(drain(), " g2 g1 g0 step0 a0 a1 a2");
}

TEST_F(ProgramProgressTest, EveryCallTellsOfARewindOnceAndDoesNothingElse) {
  for (const char* call : {"gradient", "step", "wait", "finish"}) {
    SCOPED_TRACE(call);
    progress_ = ProgramProgress({"conv", "fc1", "fc2"});
    join_at(7);
    ASSERT_EQ(progress_.gradient(0).verdict, Verdict::kOk);
    progress_.over();
    epoch_at(3);
    const auto ask = [&] {
      return std::string(call) == "gradient" ? progress_.gradient(1)
             : std::string(call) == "step"   ? progress_.step(0)
             : std::string(call) == "wait"   ? progress_.wait(0)
                                             : progress_.finish();
    };
    EXPECT_EQ(ask().verdict, Verdict::kRewound);
    EXPECT_EQ(progress_.iteration(), 3);
    EXPECT_EQ(drain(), "");
    report_all();
    EXPECT_EQ(progress_.step(0).verdict, Verdict::kOk);
  }
}

TEST_F(ProgramProgressTest, ARewindSurvivesEpochsThatEndBeforeTheProgramAsks) {
  join_at(7);
  progress_.over();
  epoch_at(3);
  progress_.over();
  EXPECT_EQ(progress_.wait(0).verdict, Verdict::kWait);
  epoch_at(2);
  EXPECT_EQ(progress_.wait(0).verdict, Verdict::kRewound);
  EXPECT_EQ(progress_.iteration(), 2);
  progress_.over();
  epoch_at(1);
  EXPECT_EQ(progress_.wait(0).verdict, Verdict::kRewound) << "it has no gradients of 1";
}

TEST_F(ProgramProgressTest, AnotherRankOrAnotherNumberOfWorkersIsToldAsARewind) {
  join_at(5);
  progress_.over();
  epoch_at(5, /*rank=*/0, /*workers=*/1);
  EXPECT_EQ(progress_.gradient(0).verdict, Verdict::kRewound);
  EXPECT_EQ(progress_.iteration(), 5);
  EXPECT_EQ(progress_.place().workers, 1u);
  progress_.over();
  epoch_at(5, /*rank=*/1, /*workers=*/1);
  EXPECT_EQ(progress_.gradient(0).verdict, Verdict::kRewound);
}

TEST_F(ProgramProgressTest, FinishWaitsForTheEndAndIsRepeatedInAnotherEpoch) {
  join_at(0);
  report_all();
  ASSERT_EQ(progress_.step(0).verdict, Verdict::kOk);
  EXPECT_EQ(progress_.finish().verdict, Verdict::kWait);
  EXPECT_EQ(drain(), " g2 g1 g0 step0 a0 a1 a2 finish1");
  EXPECT_EQ(progress_.finish().verdict, Verdict::kWait) << "until the job is done";
  EXPECT_EQ(progress_.gradient(0).verdict, Verdict::kInvalid);
  EXPECT_EQ(progress_.step(0).verdict, Verdict::kInvalid);
  progress_.over();
  epoch_at(0);
  EXPECT_EQ(drain(), " g2 g1 g0 step0 a0 a1 a2 finish1");
  progress_.end(/*done=*/true);
  EXPECT_EQ(progress_.finish().verdict, Verdict::kOk);
  EXPECT_EQ(progress_.wait(0).verdict, Verdict::kEnded);
}

TEST_F(ProgramProgressTest, AStoppedJobEndsAllCalls) {
  join_at(0);
  progress_.end(/*done=*/false);
  progress_.end(/*done=*/true);
  EXPECT_EQ(progress_.finish().verdict, Verdict::kEnded);
  EXPECT_EQ(progress_.gradient(0).verdict, Verdict::kEnded);
  EXPECT_EQ(progress_.next().kind, Kind::kNothing);
}

class ProgramRatesTest : public ProgramProgressTest {
 protected:
  ProgramRatesTest() { progress_ = ProgramProgress({"conv", "fc1", "fc2"}, /*gives_rates=*/true); }
};

TEST_F(ProgramRatesTest, RatesBehindTheGradientsMayFollowTheNorm) {
  join_at(0);
  report_all();
  EXPECT_EQ(progress_.norm().verdict, Verdict::kWait);
  EXPECT_EQ(drain(), " g2 g1 g0 norm0");
  EXPECT_EQ(progress_.norm().verdict, Verdict::kOk);
  EXPECT_EQ(progress_.step(0).message,
            "poseidon_step: iteration 0 has no rates: call poseidon_rates first");
  ASSERT_EQ(progress_.rates().verdict, Verdict::kOk);
  EXPECT_FALSE(progress_.rates_are_ahead());
  EXPECT_EQ(progress_.rates().message, "poseidon_rates: iteration 0 has its rates already");
  ASSERT_EQ(progress_.step(0).verdict, Verdict::kOk);
  EXPECT_EQ(drain(), " rates0 step0 a0 a1 a2");
}

TEST_F(ProgramRatesTest, RatesAheadAreGivenBeforeTheGradients) {
  join_at(0);
  ASSERT_EQ(progress_.rates().verdict, Verdict::kOk);
  EXPECT_TRUE(progress_.rates_are_ahead());
  EXPECT_EQ(drain(), " rates0");
  report_all();
  ASSERT_EQ(progress_.step(0).verdict, Verdict::kOk);
  EXPECT_EQ(drain(), " g2 g1 g0 step0 a0 a1 a2");
  wait_all();
  report_all();
  EXPECT_EQ(drain(), " g2 g1 g0") << "the next iteration's are not there yet";
}

TEST_F(ProgramRatesTest, RatesBetweenGradientsAreRefused) {
  join_at(0);
  EXPECT_EQ(progress_.norm().verdict, Verdict::kInvalid);
  ASSERT_EQ(progress_.gradient(1).verdict, Verdict::kOk);
  EXPECT_EQ(progress_.rates().message,
            "poseidon_rates: iteration 0 has gradients of 1 of 3 layers: give the rates before the "
            "first or behind the last");
}

TEST_F(ProgramRatesTest, AnotherEpochGetsTheRatesInTheirPlaceAgain) {
  join_at(0);
  ASSERT_EQ(progress_.rates().verdict, Verdict::kOk);
  report_all();
  EXPECT_EQ(drain(), " rates0 g2 g1 g0");
  epoch_at(0);
  EXPECT_EQ(drain(), " rates0 g2 g1 g0");
  ASSERT_EQ(progress_.step(0).verdict, Verdict::kOk);
  EXPECT_EQ(drain(), " step0 a0 a1 a2");
  epoch_at(0);
  EXPECT_EQ(drain(), " rates0 g2 g1 g0 step0 a0 a1 a2") << "one step back";
}

TEST_F(ProgramProgressTest, AJobWithRatesOfItsOwnTakesNone) {
  join_at(0);
  EXPECT_EQ(progress_.rates().verdict, Verdict::kInvalid);
  report_all();
  EXPECT_EQ(progress_.norm().verdict, Verdict::kInvalid);
}

// ---- random sequences ----

/// A program, its memory, and a cluster that takes the job back at random. Tensors hold the number
/// of the iteration that they belong to.
class RandomRun {
 public:
  explicit RandomRun(unsigned seed)
      : random_(seed), gives_rates_(seed % 2 == 0), progress_({"a", "b", "c"}, gives_rates_) {
    progress_.prepare({.first_iteration = 0, .rank = 0, .workers = 2});
    fill(0);
    progress_.begin();
    EXPECT_EQ(progress_.join().verdict, Verdict::kOk);
  }

  /// Steps that the servers have made; a newer one waits for this worker's gradients.
  Iteration done() const { return server_; }

  void turn() {
    if (dice(40)) return lose_epoch();
    if (dice(2)) return epoch_turn();
    program_turn();
  }

  int silent = 0, rewinds = 0;

 private:
  static constexpr std::size_t kLayers = 3;
  static constexpr Iteration kTorn = -7;  ///< gradients that are being written

  bool dice(int sides) { return std::uniform_int_distribution<int>(1, sides)(random_) == 1; }
  std::size_t any_layer() { return std::uniform_int_distribution<std::size_t>(0, 2)(random_); }
  void fill(Iteration version) { parameters_.assign(kLayers, version); }

  /// A new epoch begins at the servers' version, or a step or more before.
  void lose_epoch() {
    progress_.over();
    awaited_.reset();
    if (dice(2)) program_turn();
    server_ = std::max<Iteration>(0, server_ - (dice(3) ? 1 : dice(8) ? 3 : 0));
    const bool was_told = rewound_;
    progress_.prepare({.first_iteration = server_, .rank = 0, .workers = 2});
    rewound_ = was_told || progress_.iteration() != mine_;
    silent += rewound_ ? 0 : 1;
    if (dice(3)) program_turn();
    fill(server_);
    given_.assign(kLayers, false);
    given_rates_ = 0;
    if (dice(3)) program_turn();
    if (dice(10)) return;  // it is lost before it begins
    progress_.begin();
  }

  void epoch_turn() {
    if (awaited_) {
      parameters_[*awaited_] = server_;
      progress_.landed(*awaited_);
      awaited_.reset();
      return;
    }
    const Action action = progress_.next();
    switch (action.kind) {
      case Kind::kGradient:
        ASSERT_EQ(action.iteration, server_);
        ASSERT_EQ(gradients_[action.layer], action.iteration) << "layer " << action.layer;
        ASSERT_FALSE(given_[action.layer]);
        given_[action.layer] = true;
        break;
      case Kind::kRates:
        ASSERT_EQ(action.iteration, server_);
        ++given_rates_;
        break;
      case Kind::kNorm:
        FAIL() << "the program never asks";
      case Kind::kStep:
        ASSERT_EQ(action.iteration, server_);
        ASSERT_EQ(action.loss, static_cast<double>(server_));
        ASSERT_EQ(given_, std::vector<bool>(kLayers, true));
        ASSERT_EQ(given_rates_, gives_rates_ ? 1 : 0);
        given_.assign(kLayers, false);
        given_rates_ = 0;
        ++server_;
        break;
      case Kind::kAwait:
        ASSERT_EQ(action.iteration, server_);
        awaited_ = action.layer;
        break;
      case Kind::kFinish:
        FAIL() << "the program never finishes";
      case Kind::kNothing:
        break;
    }
  }

  /// The program reads parameters in order, then writes and reports gradients, then steps.
  void program_turn() {
    if (waited_ < kLayers) {
      if (took(progress_.wait(waited_))) ++waited_;
    } else if (gives_rates_ && !rated_ &&
               (reported_.size() == kLayers || (!writing_ && reported_.empty() && dice(2)))) {
      if (took(progress_.rates())) rated_ = true;
    } else if (!writing_ && reported_.size() < kLayers) {
      do {
        writing_ = any_layer();
      } while (std::ranges::find(reported_, *writing_) != reported_.end());
      // It computes with what it has waited for; a rewind that it has not heard of may have
      // changed that, which it then throws away.
      if (!rewound_) {
        ASSERT_EQ(parameters_, std::vector<Iteration>(kLayers, mine_));
      }
      gradients_[*writing_] = kTorn;
    } else if (writing_) {
      gradients_[*writing_] = mine_;
      if (took(progress_.gradient(*writing_))) {
        reported_.push_back(*writing_);
        writing_.reset();
      }
    } else if (took(progress_.step(static_cast<double>(mine_)))) {
      ++mine_;
      reported_.clear();
      rated_ = false;
      waited_ = 0;
    }
    ASSERT_TRUE(rewound_ || progress_.iteration() == mine_);
  }

  bool took(const ProgramProgress::Reply& reply) {
    EXPECT_NE(reply.verdict, Verdict::kInvalid) << reply.message;
    EXPECT_NE(reply.verdict, Verdict::kEnded);
    if (reply.verdict == Verdict::kRewound) {
      EXPECT_TRUE(rewound_) << "for no reason";
      rewound_ = false;
      ++rewinds;
      mine_ = progress_.iteration();
      EXPECT_EQ(parameters_, std::vector<Iteration>(kLayers, mine_));
      reported_.clear();
      rated_ = false;
      writing_.reset();
      waited_ = kLayers;
      return false;
    }
    EXPECT_FALSE(rewound_ && reply.verdict == Verdict::kOk) << "it goes on with what is gone";
    return reply.verdict == Verdict::kOk;
  }

  std::mt19937 random_;
  const bool gives_rates_;
  ProgramProgress progress_;
  std::vector<Iteration> parameters_ = std::vector<Iteration>(kLayers, 0);
  std::vector<Iteration> gradients_ = std::vector<Iteration>(kLayers, -1);

  Iteration server_ = 0;
  std::vector<bool> given_ = std::vector<bool>(kLayers, false);
  int given_rates_ = 0;  ///< how often, in this iteration
  std::optional<std::size_t> awaited_;

  Iteration mine_ = 0;  ///< as the program knows it
  std::size_t waited_ = kLayers;
  std::vector<std::size_t> reported_;
  bool rated_ = false;  ///< in this iteration
  std::optional<std::size_t> writing_;
  bool rewound_ = false;  ///< and the program has not heard of it
};

TEST(RandomProgramProgressTest, NothingButWholeGradientsOfTheIterationIsGiven) {
  int silent = 0, rewinds = 0;
  Iteration done = 0;
  for (unsigned seed = 1; seed <= 300 && !testing::Test::HasFailure(); ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    RandomRun run(seed);
    for (int turn = 0; turn < 2000 && !testing::Test::HasFailure(); ++turn) run.turn();
    silent += run.silent;
    rewinds += run.rewinds;
    done += run.done();
  }
  EXPECT_GT(silent, 3000);
  EXPECT_GT(rewinds, 500);
  EXPECT_GT(done, 3000);
}

}  // namespace poseidon::program_progress_test
