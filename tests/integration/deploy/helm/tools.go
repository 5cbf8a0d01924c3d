//go:build tools

// Package tools names Helm, so that go.sum has the checksums of all modules it is built from.
package tools

import _ "helm.sh/helm/v3/cmd/helm"
