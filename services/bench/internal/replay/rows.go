package replay

import "github.com/millrace/millrace/services/bench/internal/trace"

// row is one measurement: whether the trace is taken without its reuse, and who chooses workers.
type row struct {
	name       string
	unique     bool
	schedulers int // 0: the rule
	rule       rule
}

// Names of rows.
const (
	oneScheduler   = "trace/scheduler"
	twoSchedulers  = "trace/two-schedulers"
	traceInTurn    = "trace/round-robin"
	traceLeast     = "trace/least-loaded"
	traceOracle    = "trace/oracle"
	uniqueOne      = "unique/scheduler"
	uniqueLeast    = "unique/least-loaded"
	comparisonsRow = "compared"
)

var rows = []row{
	{name: oneScheduler, schedulers: 1},
	{name: twoSchedulers, schedulers: 2},
	{name: traceInTurn, rule: roundRobin},
	{name: traceLeast, rule: leastLoaded},
	{name: traceOracle, rule: oracle},
	{name: uniqueOne, unique: true, schedulers: 1},
	{name: uniqueLeast, unique: true, rule: leastLoaded},
}

// RowNames lists the rows that can be measured.
func RowNames() []string {
	names := make([]string, len(rows))
	for i, r := range rows {
		names[i] = r.name
	}
	return names
}

// requests is the trace as the row plays it.
func (r row) requests(of []trace.Request) []trace.Request {
	if r.unique {
		return Unique(of)
	}
	return of
}
