// The table at the end of every experiment: our figures beside the published ones, each row
// labelled with how it was obtained, as text and as JSON.

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
  kFailed,       // the same until an error, which the note tells
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
  std::vector<std::string> sources;  // whose published figures stand beside ours
};

// What became of a variant here.
struct Outcome {
  Origin origin = Origin::kNotRun;
  std::map<std::string, double> figures;  // by Column::key
  std::string note;                       // what was run, or why nothing was
  // For the JSON: what was set (batch size, balance, ...), and what each epoch gave.
  Json settings = Json::object();
  Json epochs = Json::array();
};

struct PublishedRow {
  std::string experiment;
  // [key][source] as published, "21.99±0.13" for instance.
  std::map<std::string, std::map<std::string, std::string>> figures;
  // Why there is nothing to run for it here; empty if there is.
  std::string no_counterpart;
};

// A published table.
struct PublishedTable {
  std::string title;
  std::vector<Column> columns;
  std::vector<PublishedRow> rows;
  // The column of ratios is `of` divided by the same figure of the row `reference`, as the
  // published one is. Empty: there is none.
  std::string ratio;
  std::string of;
  std::string reference;
};

// Three significant digits, no exponent; all digits before the point: "0.651", "22.0", "2559".
std::string three_digits(double value);

// Not thread-safe.
//
//   Report report(table, outcomes);
//   std::cout << report.to_text(80);
class Report {
 public:
  // A row for each of the table's. Throws std::invalid_argument if the table names a column or a
  // source that it does not have; if an outcome is of no row; if it has a figure that is no column,
  // one of its own in an origin that has none, none in one that must, or, if not run or failed, no
  // note: nothing is shown that was not obtained, and what is missing says why. Rows without an
  // outcome are labelled not run, "not asked for (--experiment)".
  Report(PublishedTable table, std::map<std::string, Outcome> outcomes);

  // A line below the table, such as the machine that measured it.
  void add_remark(const std::string& remark);

  // Aligned for a fixed-width font, in no more than `columns` columns where a single figure fits
  // them: figures that do not fit beside each other stand below each other. "-" where there is no
  // figure. Notes and remarks follow, wrapped. Ends with a newline.
  std::string to_text(std::size_t columns) const;

  // {"title", "remarks", "rows": [{"experiment", "origin", "note", "settings", "epochs", "figures":
  // {key: {"ours": number or null, "published": {source: figure}}}}]}, indented. A published figure
  // is a number, {"value", "plus_minus"}, or, where it is no number, a text. What is not finite (a
  // diverged loss) is null.
  std::string to_json() const;

 private:
  PublishedTable table_;
  std::map<std::string, Outcome> outcomes_;  // one for each row
  std::vector<std::string> remarks_;
};

}  // namespace gpipe::experiments

#endif  // GPIPE_EXPERIMENTS_COMMON_REPORT_H_
