// Report: the table at the end of every experiment.
//
// It shows our figures beside the published ones, as text and as JSON. Each row is labeled with how
// it was obtained.
#ifndef GPIPE_EXPERIMENTS_COMMON_REPORT_H_
#define GPIPE_EXPERIMENTS_COMMON_REPORT_H_

#include <cstddef>
#include <map>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

namespace gpipe::experiments {

// ordered: keeps the order in which a person would read it.
using Json = nlohmann::ordered_json;

// How the figures of a row were obtained.
enum class Origin {
  kMeasured,     // really run here
  kInterrupted,  // the same until the user stopped it: what was reached
  kFailed,       // the same until an error, which the note reports
  kPlanned,      // computed on the meta device at full size
  kSimulated,    // the schedule at full size with profiled costs
  kPublished,    // the row holds published figures only
  kNotRun,       // not run here; the row's note says why
};

// "measured", "interrupted", "failed", "planned", "simulated", "published", "not run".
std::string to_text(Origin origin);

// A figure that the rows of a report have.
struct Column {
  std::string key;                   // of the JSON, e.g. "top1_error_percent"
  std::string heading;               // of the table, with the unit, e.g. "top-1 error (%)"
  std::vector<std::string> sources;  // whose published figures are shown beside ours
};

// The result of a variant here.
struct Outcome {
  Origin origin = Origin::kNotRun;
  std::map<std::string, double> figures;  // by Column::key
  std::string note;                       // what was run, or why nothing was
  // For the JSON: the settings (batch size, balance, ...), and the results of each epoch.
  Json settings = Json::object();
  Json epochs = Json::array();
};

struct PublishedRow {
  std::string experiment;
  // [key][source] as published, for example "21.99±0.13".
  std::map<std::string, std::map<std::string, std::string>> figures;
  // Why there is nothing to run for it here; empty if there is something.
  std::string no_counterpart;
};

// A published table.
struct PublishedTable {
  std::string title;
  std::vector<Column> columns;
  std::vector<PublishedRow> rows;
  // The column of ratios is `of` divided by the same figure of the row `reference`, as in the
  // published table. Empty: there is none.
  std::string ratio;
  std::string of;
  std::string reference;
};

// Three significant digits, no exponent; all digits before the point: "0.651", "22.0", "2559".
std::string three_digits(double value);

// Thread-safety: none.
//
// Example:
//   Report report(table, outcomes);
//   std::cout << report.to_text(80);
class Report {
 public:
  // One row for each row of the table. Rows without an outcome are labeled not run, "not asked for
  // (--experiment)". Throws std::invalid_argument if the table names a column or a source that it
  // does not have; if an outcome belongs to no row; if it has a figure that is not a column, a
  // figure of its own with an origin that has none, or no figure with an origin that must have one;
  // and if it is not run or failed but has no note. So nothing is shown that was not obtained, and
  // what is missing says why.
  Report(PublishedTable table, std::map<std::string, Outcome> outcomes);

  // A line below the table, such as the machine that measured it.
  void add_remark(const std::string& remark);

  // Aligned for a fixed-width font, in at most `columns` columns if a single figure fits them:
  // figures that do not fit side by side go below each other. "-" where there is no figure. Notes
  // and remarks follow, wrapped. Ends with a newline.
  std::string to_text(std::size_t columns) const;

  // {"title", "remarks", "rows": [{"experiment", "origin", "note", "settings", "epochs", "figures":
  // {key: {"ours": number or null, "published": {source: figure}}}}]}, indented. A published figure
  // is a number, {"value", "plus_minus"}, or, if it is not a number, a text. A value that is not
  // finite (a diverged loss) is null.
  std::string to_json() const;

 private:
  PublishedTable table_;
  std::map<std::string, Outcome> outcomes_;  // one for each row
  std::vector<std::string> remarks_;
};

}  // namespace gpipe::experiments

#endif  // GPIPE_EXPERIMENTS_COMMON_REPORT_H_
