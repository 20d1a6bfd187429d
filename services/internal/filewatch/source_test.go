package filewatch_test

import (
	"errors"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/millrace/millrace/services/internal/filewatch"
)

var errBad = errors.New("bad")

// file is a file with a fake clock.
type file struct {
	text    string
	gone    error
	now     time.Time
	reads   int
	changed []int
	failed  []string
}

func (f *file) config() filewatch.Config[string, int] {
	return filewatch.Config[string, int]{
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

func TestCurrentReadsAtMostOnceASecond(t *testing.T) {
	f := &file{text: "abc"}
	s, err := filewatch.New(f.config())
	require.NoError(t, err)
	f.text = "abcde"
	f.now = f.now.Add(filewatch.Every - 1)
	require.Equal(t, 3, s.Current())
	require.Equal(t, 1, f.reads)
	f.now = f.now.Add(1)
	require.Equal(t, 5, s.Current())
	require.Equal(t, 5, s.Current())
	require.Equal(t, 2, f.reads)
	require.Equal(t, []int{5}, f.changed)
	f.now = f.now.Add(filewatch.Every)
	require.Equal(t, 5, s.Current())
	require.Len(t, f.changed, 1, "the same bytes are no change")
}

func TestCurrentKeepsTheLastUsableValue(t *testing.T) {
	// Each different error is reported once.
	f := &file{text: "abc"}
	s, err := filewatch.New(f.config())
	require.NoError(t, err)
	again := func() int {
		f.now = f.now.Add(filewatch.Every)
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

func TestNewReturnsTheFirstError(t *testing.T) {
	for _, f := range []*file{{text: "bad"}, {gone: errBad}} {
		_, err := filewatch.New(f.config())
		require.ErrorIs(t, err, errBad)
	}
}

func TestCurrentDuringAnotherReading(t *testing.T) {
	// Current returns the previous value during another reading, unless it is old.
	for name, tc := range map[string]struct {
		idle time.Duration
		want int // for the second caller
	}{"a moment": {filewatch.Every, 3}, "an hour": {time.Hour, 5}} {
		t.Run(name, func(t *testing.T) {
			f := &file{text: "abc"}
			config := f.config()
			reads, asked, goOn := 0, make(chan bool, 8), make(chan struct{})
			config.Read = func() (string, error) {
				if reads++; reads == 1 {
					return "abc", nil
				}
				asked <- true
				<-goOn
				return "abcde", nil
			}
			config.Now = func() time.Time {
				asked <- true
				return f.now
			}
			s, err := filewatch.New(config)
			require.NoError(t, err)
			<-asked
			f.now = f.now.Add(tc.idle)
			first, second := make(chan int, 1), make(chan int, 1)
			go func() { first <- s.Current() }()
			<-asked
			<-asked // it reads
			go func() { second <- s.Current() }()
			<-asked // it has found the lock held
			if tc.want == 3 {
				require.Equal(t, 3, <-second)
				close(goOn)
				require.Equal(t, 5, <-first)
				return
			}
			close(goOn)
			require.Equal(t, 5, <-first)
			require.Equal(t, 5, <-second)
			require.Equal(t, 2, reads)
		})
	}
}
