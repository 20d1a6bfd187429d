// Package helm checks the chart of deploy/helm: its tests render it with Helm's own engine for each file of deploy/helm/examples, decode
// every document strictly into the types of its API, hold documents against each other, against the tables of docs and against the
// pod security standards, and start the programs with the arguments that a pod would have.
//
// The module is apart from the product's and from the other tools': Helm and the types of Kubernetes reach neither. It knows no cluster.
package helm
