package cli

import (
	"testing"

	"github.com/millrace/millrace/internal/manpages"
	"github.com/millrace/millrace/services/millrace/internal/config"
)

func TestManualPages(t *testing.T) {
	a := &app{System: &System{Config: config.Config{Target: config.DefaultTarget}}}
	manpages.Check(t, a.root())
}
