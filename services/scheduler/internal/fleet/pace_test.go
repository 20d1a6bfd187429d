package fleet

import (
	"errors"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

func TestNameThatLostAnAddressIsLookedUpOften(t *testing.T) {
	const usual, quick = 5 * time.Second, time.Second
	now := time.Unix(1e9, 0)
	p := lookupInterval{}
	for _, look := range []struct {
		after time.Duration
		hosts []string
		err   error
		want  time.Duration
		why   string
	}{
		{0, nil, errors.New("no such host"), usual, "nothing was there yet"},
		{usual, []string{"a", "b"}, nil, usual, "two have come"},
		{usual, nil, errors.New("server misbehaving"), usual, "a name server that is down says nothing"},
		{usual, []string{"b"}, nil, quick, "a has gone"},
		{quick, nil, errors.New("server misbehaving"), quick, "a may be back"},
		{quick, []string{"b", "a"}, nil, quick, "a is back, and another may go now, as in a rolling restart"},
		{time.Minute, []string{"a", "b"}, nil, usual, "a minute later"},
		{usual, []string{"c", "b"}, nil, quick, "a came back under another address, or is gone"},
	} {
		now = now.Add(look.after)
		require.Equal(t, look.want, p.next(look.hosts, look.err, now, usual), look.why)
	}
}
