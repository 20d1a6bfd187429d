package transport

import (
	"time"

	"github.com/hashicorp/go-hclog"

	"github.com/millrace/millrace/services/internal/filewatch"
)

// source holds the material of files. Current is called when a connection is made.
type source struct {
	*filewatch.Source[contents, material]
	logger hclog.Logger
}

// newSource reads the files for the first time.
func newSource(f files, logger hclog.Logger) (*source, error) {
	s := &source{logger: logger.Named("tls")}
	var err error
	s.Source, err = filewatch.New(filewatch.Config[contents, material]{
		Read: f.read, Parse: f.parse,
		Changed: func(m material) {
			fields := []any{"authorities", f.ca}
			if m.certificate != nil {
				leaf := m.certificate.Leaf
				fields = append(fields, "certificate", f.cert, "names", namesOf(leaf), "not_after", leaf.NotAfter.UTC().Format(time.RFC3339))
			}
			s.logger.Info("certificate files read again", fields...)
			s.warnOfDates(f, m)
		},
		Failed: func(err error) {
			s.logger.Error("certificate files cannot be used, those read before stay", "error", err)
		},
	})
	if err != nil {
		return nil, err
	}
	s.warnOfDates(f, s.Current())
	return s, nil
}

// warnOfDates warns of a certificate that is not valid now.
func (s *source) warnOfDates(f files, m material) {
	if m.certificate == nil {
		return
	}
	leaf := m.certificate.Leaf
	if now := time.Now(); now.Before(leaf.NotBefore) || now.After(leaf.NotAfter) {
		s.logger.Warn("certificate is not valid at this time, peers will refuse it", "certificate", f.cert,
			"not_before", leaf.NotBefore.UTC().Format(time.RFC3339), "not_after", leaf.NotAfter.UTC().Format(time.RFC3339))
	}
}
