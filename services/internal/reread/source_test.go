package reread_test

import (
	"errors"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/millrace/millrace/services/internal/reread"
)

var errBad = errors.New("bad")

// file is a file whose time is the test's.
type file struct {
	text    string
	gone    error
	now     time.Time
	reads   int
	changed []int
	failed  []string
}

func (f *file) config() reread.Config[string, int] {
	return reread.Config[string, int]{
		Read: func() (string, error) { f.reads++; return f.text, f.gone },
		Parse: func(text string) (int, error) {
			if text == "bad" {
				return 0, errBad
			}
			return len(text), nil
		},
		Changed: func(n int) { f.changed = append(f.changed, n) },
		Failed:  func(err error) { f.failed = append(f.failed, err.Error()) },
		Now:     func() time.Time { return f.now },
	}
}

func TestFilesAreReadAgainAtMostOnceASecond(t *testing.T) {
	f := &file{text: "abc"}
	s, err := reread.New(f.config())
	require.NoError(t, err)
	f.text = "abcde"
	f.now = f.now.Add(reread.Every - 1)
	require.Equal(t, 3, s.Current())
	require.Equal(t, 1, f.reads)
	f.now = f.now.Add(1)
	require.Equal(t, 5, s.Current())
	require.Equal(t, 5, s.Current())
	require.Equal(t, 2, f.reads)
	require.Equal(t, []int{5}, f.changed)
	f.now = f.now.Add(reread.Every)
	require.Equal(t, 5, s.Current())
	require.Len(t, f.changed, 1, "the same bytes are no change")
}

func TestFilesThatCannotBeUsedLeaveWhatWasThereAndAreToldOfOnce(t *testing.T) {
	f := &file{text: "abc"}
	s, err := reread.New(f.config())
	require.NoError(t, err)
	again := func() int {
		f.now = f.now.Add(reread.Every)
		return s.Current()
	}
	f.text = "bad"
	require.Equal(t, 3, again())
	require.Equal(t, 3, again())
	f.gone = errors.New("gone")
	require.Equal(t, 3, again())
	require.Equal(t, []string{"bad", "gone"}, f.failed)
	f.text, f.gone = "abc", nil
	require.Equal(t, 3, again())
	f.gone = errors.New("gone")
	require.Equal(t, 3, again())
	require.Equal(t, []string{"bad", "gone", "gone"}, f.failed, "it was well between")
	f.text, f.gone = "abcd", nil
	require.Equal(t, 4, again())
	require.Equal(t, []int{4}, f.changed)
}

func TestWhatCannotBeUsedAtFirstIsAnError(t *testing.T) {
	for _, f := range []*file{{text: "bad"}, {gone: errBad}} {
		_, err := reread.New(f.config())
		require.ErrorIs(t, err, errBad)
	}
}

func TestOneCallerReadsAndNoOtherWaits(t *testing.T) {
	f := &file{text: "abc"}
	config := f.config()
	reading, goOn := make(chan struct{}), make(chan struct{})
	first := true
	config.Read = func() (string, error) {
		if first {
			first = false
			return "abc", nil
		}
		close(reading)
		<-goOn
		return "abcde", nil
	}
	s, err := reread.New(config)
	require.NoError(t, err)
	f.now = f.now.Add(reread.Every)
	got := make(chan int)
	go func() { got <- s.Current() }()
	<-reading
	require.Equal(t, 3, s.Current())
	close(goOn)
	require.Equal(t, 5, <-got)
	require.Equal(t, 5, s.Current())
}
