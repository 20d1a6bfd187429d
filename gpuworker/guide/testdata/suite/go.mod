module github.com/millrace/millrace/gpuworker/guide/testdata/suite

go 1.26.0

require github.com/google/jsonschema-go v0.4.3
