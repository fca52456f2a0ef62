"""Definitions of a namespace in other tools' files, pure: from bytes to the configuration, and back.

sources           What a file is, and its reading.
found             What was found: configurations, and notes of what is not offered.
arm               Resources of an ARM template, which Bicep compiles to, as entities.
arm_resources     The resources of a template: loops, conditions, nested deployments.
arm_scope         Parameters and variables of a template; values with expressions, evaluated.
arm_expressions   Template expressions, parsed and evaluated.
arm_functions     The functions of expressions.
arm_writing       A configuration as an ARM template.
terraform         The state of Terraform's provider `azurerm`.
"""
