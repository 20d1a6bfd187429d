package trace

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"
)

var azureColumns = []string{"TIMESTAMP", "ContextTokens", "GeneratedTokens"}

// azureLayouts are the spellings of a time, with and without zone.
var azureLayouts = []string{"2006-01-02 15:04:05.999999999", "2006-01-02 15:04:05.999999999Z07:00"}

// newAzure parses CSV; the first line names the columns, in any order.
func newAzure() parser {
	var at [3]int // column of each name
	first := true
	var begin time.Time
	return func(line string) (Request, bool, error) {
		fields := strings.Split(strings.TrimSuffix(line, "\r"), ",")
		if first {
			first = false
			for i, name := range azureColumns {
				if at[i] = slices.Index(fields, name); at[i] < 0 {
					return Request{}, false, fmt.Errorf("no column %s; want a header %s, or JSON lines", name, strings.Join(azureColumns, ","))
				}
			}
			return Request{}, false, nil
		}
		if len(fields) <= slices.Max(at[:]) {
			return Request{}, false, fmt.Errorf("%d fields, want at least %d", len(fields), slices.Max(at[:])+1)
		}
		moment, err := azureTime(fields[at[0]])
		if err != nil {
			return Request{}, false, err
		}
		if begin.IsZero() {
			begin = moment
		}
		prompt, err := strconv.Atoi(fields[at[1]])
		if err != nil {
			return Request{}, false, fmt.Errorf("ContextTokens is %q", fields[at[1]])
		}
		output, err := strconv.Atoi(fields[at[2]])
		if err != nil {
			return Request{}, false, fmt.Errorf("GeneratedTokens is %q", fields[at[2]])
		}
		return Request{At: moment.Sub(begin), Prompt: prompt, Output: output}, true, nil
	}
}

func azureTime(s string) (time.Time, error) {
	for _, layout := range azureLayouts {
		if t, err := time.Parse(layout, s); err == nil {
			return t, nil
		}
	}
	return time.Time{}, fmt.Errorf("TIMESTAMP is %q, want such as 2023-11-16 18:15:46.6805900", s)
}
