package main

import (
	"io"
	"testing"

	"github.com/millrace/millrace/internal/manpages"
)

func TestTheManualPagesAreCurrent(t *testing.T) { manpages.Compare(t, command(io.Discard)) }
