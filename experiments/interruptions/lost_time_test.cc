#include "experiments/interruptions/lost_time.h"

#include <gtest/gtest.h>

#include <cmath>

namespace gpipe::experiments {
namespace {

double sum(const LostTime& lost) {
  return lost.training + lost.repeated + lost.recovering + lost.copying + lost.saving;
}

double share(const Cluster& cluster, const Recovery& recovery, uint64_t seed = 1) {
  return play(cluster, recovery, draw_interruptions(cluster, seed)).training / cluster.seconds;
}

// Daly 2006, the complete model: the share of time that trains, if the cluster fails every `mean`
// seconds, copies for `copy` seconds after each `work` seconds, and recovers in `recovery` seconds.
double dalys_share(double mean, double work, double copy, double recovery) {
  return work / (mean * std::exp(recovery / mean) * std::expm1((work + copy) / mean));
}

// Failures of a cluster of 100 workers every 1,000 s, 40,000 of them.
Cluster cluster_of_100() {
  Cluster cluster;
  cluster.workers = 100;
  cluster.seconds = 4e7;
  cluster.seconds_between_failures = 1e5;
  return cluster;
}

// The lost time is a sum over 40,000 failures whose standard deviation is about their mean, so its
// relative error is 0.5 %; this is four times as much.
constexpr double kSamplingError = 0.02;

TEST(LostTime, IsDalysOnDisk) {
  for (const int64_t save_every : {10, 50, 300}) {
    Recovery recovery;
    recovery.step = 2;
    recovery.save_every = save_every;
    recovery.save = 5;
    recovery.restart = 60;
    const double expected =
        1 - dalys_share(1000, 2 * static_cast<double>(save_every), recovery.save, 60);
    EXPECT_NEAR(1 - share(cluster_of_100(), recovery), expected, kSamplingError * expected)
        << save_every;
  }
}

TEST(LostTime, IsDalysInMemory) {
  for (const int64_t snapshot_every : {1, 10, 100}) {
    Recovery recovery;
    recovery.step = 2;
    recovery.snapshot_every = snapshot_every;
    recovery.snapshot = 1;
    recovery.recovery = 4;
    recovery.save_every = 1'000'000'000;  // never
    Cluster cluster = cluster_of_100();
    cluster.workers *= 1'000'000;  // so that two partners never fail at once
    cluster.seconds_between_failures *= 1e6;
    const double expected =
        1 - dalys_share(1000, 2 * static_cast<double>(snapshot_every), recovery.snapshot,
                        recovery.recovery + recovery.snapshot);
    EXPECT_NEAR(1 - share(cluster, recovery), expected, kSamplingError * expected)
        << snapshot_every;
  }
}

TEST(LostTime, IsLeastAtYoungsInterval) {
  Recovery recovery;
  recovery.step = 1;
  recovery.save = 2;
  const double best = youngs_interval(recovery.save, 1000);
  EXPECT_NEAR(best, 63.2, 0.1);
  const auto share_at = [&](double interval) {
    recovery.save_every = static_cast<int64_t>(interval);
    return share(cluster_of_100(), recovery);
  };
  EXPECT_GT(share_at(best), share_at(best / 2));
  EXPECT_GT(share_at(best), share_at(best * 2));
}

TEST(LostTime, HasPartsThatAddUp) {
  Recovery recovery;
  recovery.step = 7;
  recovery.snapshot_every = 3;
  recovery.snapshot = 2;
  recovery.recovery = 200;
  recovery.save_every = 20;
  recovery.save = 11;
  recovery.restart = 600;
  Cluster cluster = cluster_of_100();
  cluster.workers = 5;  // so that partners fail in one recovery
  cluster.seconds_between_failures = 5000;
  const std::vector<Interruption> all = draw_interruptions(cluster, 3);
  const LostTime lost = play(cluster, recovery, all);
  EXPECT_NEAR(sum(lost), cluster.seconds, 1e-3);
  EXPECT_EQ(lost.interruptions, static_cast<int64_t>(all.size()));
  EXPECT_GT(lost.from_disk, 100);
  EXPECT_LT(lost.from_disk, lost.interruptions / 2);
  for (const double part :
       {lost.training, lost.repeated, lost.recovering, lost.copying, lost.saving}) {
    EXPECT_GT(part, 0);
  }
}

TEST(LostTime, IsTheSameForTheSameSeed) {
  const Cluster cluster = cluster_of_100();
  Recovery recovery;
  recovery.save_every = 100;
  EXPECT_EQ(share(cluster, recovery, 5), share(cluster, recovery, 5));
  EXPECT_NE(share(cluster, recovery, 5), share(cluster, recovery, 6));
}

// A run whose failures are given: 100 steps of 1 s, a snapshot of 1 s before every tenth step, a
// checkpoint of 2 s before every 25th.
class GivenFailures : public testing::Test {
 protected:
  GivenFailures() {
    cluster_.workers = 4;
    cluster_.seconds = 200;
    recovery_.snapshot_every = 10;
    recovery_.snapshot = 1;
    recovery_.recovery = 3;
    recovery_.save_every = 25;
    recovery_.save = 2;
    recovery_.restart = 20;
  }

  LostTime play_with(const std::vector<Interruption>& failures) const {
    return play(cluster_, recovery_, failures);
  }

  Cluster cluster_;
  Recovery recovery_;
};

TEST_F(GivenFailures, NoneLosesOnlyCopies) {
  const LostTime lost = play_with({});
  // 50 steps take 50 + 5 * 1 + 2 * 2 = 59 s, 150 steps 177 s; 20 more take 22, and one more is
  // left.
  EXPECT_EQ(lost.training, 171);
  EXPECT_EQ(lost.copying, 17);
  EXPECT_EQ(lost.saving, 12);
  EXPECT_EQ(lost.repeated, 0);
  EXPECT_EQ(lost.recovering, 0);
  EXPECT_EQ(lost.interruptions, 0);
}

TEST_F(GivenFailures, OneRepeatsTheStepsSinceTheSnapshot) {
  cluster_.seconds = 23;
  // The first snapshot is complete at 11 s, and five and a half steps are lost.
  const LostTime lost = play_with({{16.5, 0, false}});
  EXPECT_EQ(lost.repeated, 5.5 + 0.5);  // the unfinished step at the end, too
  EXPECT_EQ(lost.recovering, 3);
  EXPECT_EQ(lost.copying, 1 + 1);
  EXPECT_EQ(lost.training, 10 + 2);
  EXPECT_EQ(lost.from_disk, 0);
}

TEST_F(GivenFailures, OneDuringASnapshotHasTheSnapshotBefore) {
  cluster_.seconds = 50;
  const LostTime lost = play_with({{21.5, 0, false}});  // 20 steps, and half of the second snapshot
  EXPECT_EQ(lost.repeated, 10 + 0.5);
}

TEST_F(GivenFailures, BothHoldersInOneRecoveryGoOnFromDisk) {
  // Worker 3's copy is at worker 0. Steps 25 to 29 are trained from 29 to 34 s.
  for (const int64_t second : {0, 2}) {
    const LostTime lost = play_with({{33, 3, false}, {35, second, false}});
    EXPECT_EQ(lost.from_disk, 1);
    EXPECT_EQ(lost.recovering, 2 + 20);
    EXPECT_EQ(lost.interruptions, 2);
  }
  const LostTime lost = play_with({{33, 3, false}, {35, 1, false}});
  EXPECT_EQ(lost.from_disk, 0);
  EXPECT_EQ(lost.recovering, 2 + 3);
}

TEST_F(GivenFailures, TheSecondHolderAfterTheNextSnapshotIsHarmless) {
  EXPECT_EQ(play_with({{33, 3, false}, {37.5, 0, false}}).from_disk, 0);
  EXPECT_EQ(play_with({{33, 3, false}, {36.5, 0, false}}).from_disk, 1);
}

TEST_F(GivenFailures, AFailureThatTakesThePartnerGoesOnFromDisk) {
  EXPECT_EQ(play_with({{33, 3, true}}).from_disk, 1);
}

TEST_F(GivenFailures, AWorkerAloneHasNoCopy) {
  cluster_.workers = 1;
  EXPECT_EQ(play_with({{33, 0, false}}).from_disk, 1);
}

TEST_F(GivenFailures, ARecoveryMayEndWithTheTime) {
  cluster_.seconds = 34;
  const LostTime lost = play_with({{33, 3, false}});
  EXPECT_EQ(lost.recovering, 1);
  EXPECT_EQ(sum(lost), 34);
}

TEST(DrawInterruptions, HasTheShareThatTakesThePartner) {
  Cluster cluster = cluster_of_100();
  for (const double share : {0.0, 0.1, 1.0}) {
    cluster.takes_partner = share;
    const std::vector<Interruption> all = draw_interruptions(cluster, 1);
    const auto count = static_cast<double>(all.size());
    EXPECT_NEAR(count, 40000, 4 * 200);  // four standard deviations
    double taken = 0, workers = 0;
    for (const Interruption& each : all) {
      taken += each.takes_partner ? 1 : 0;
      workers += static_cast<double>(each.worker);
    }
    EXPECT_NEAR(taken / count, share, 4 * std::sqrt(share * (1 - share) / count));
    EXPECT_NEAR(workers / count, 49.5, 4 * 28.9 / 200);
  }
}

TEST(DrawInterruptions, AreNoneInNoTime) {
  Cluster cluster = cluster_of_100();
  cluster.seconds = 0;
  EXPECT_TRUE(draw_interruptions(cluster, 1).empty());
  EXPECT_EQ(sum(play(cluster, Recovery(), {})), 0);
}

}  // namespace
}  // namespace gpipe::experiments
