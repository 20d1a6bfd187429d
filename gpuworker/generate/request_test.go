package generate

import (
	"testing"

	"github.com/stretchr/testify/require"
)

// The queue's time limit is lifted for a request whose caller has a token or an end, but not for an
// entry of Resume that has neither.
func TestEmptyResumeEntryKeepsQueueLimit(t *testing.T) {
	for name, tc := range map[string]struct {
		resume []Resume
		lifted bool
	}{
		"no entry":                 {nil, false},
		"an empty entry":           {[]Resume{{}}, false},
		"empty entries":            {[]Resume{{}, {OutputIndex: 1, TextBytes: new(uint64)}}, false},
		"a token":                  {[]Resume{{IDs: []int32{1}}}, true},
		"a token of another":       {[]Resume{{}, {OutputIndex: 1, IDs: []int32{1}}}, true},
		"an end without any token": {[]Resume{{Finished: true}}, true},
	} {
		t.Run(name, func(t *testing.T) {
			r := Request{Sequences: 2, Resume: tc.resume}
			require.Equal(t, tc.lifted, r.batch(nil).Resumed)
			require.Equal(t, len(tc.resume) > 0, r.Resumed(), "nothing of the prompt is reported again to a caller that sends an entry")
		})
	}
}
